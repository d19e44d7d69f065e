"""A snapshot on a terminal, and in one line for a log."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from quantkv.rows.claims import STALE_SECONDS
from quantkv.sweep.progress import duration, time_left
from quantkv.watching.snapshot import Snapshot, workers

SHOWN_FAILURES = 5
SHOWN_CELLS = 5
BAR_WIDTH = 40


def view(seen: Snapshot) -> Group:
    """Counts by kind, who works on it, what failed last, and how long the rest may take."""
    return Group(*_parts(seen))


def line(seen: Snapshot) -> str:
    """The same in a line."""
    return ", ".join([_finished(seen), *_working(seen), *_pace(seen)])


def log_line(seen: Snapshot) -> str:
    """The line and the first of the cells that run; those of its block are taken together."""
    titles = [claim.cell for claim in seen.claims if claim.cell and not claim.stale]
    return "; running ".join([line(seen), *titles[:1]])


def _parts(seen: Snapshot) -> Iterator[RenderableType]:
    yield Text(seen.folder, style="bold")
    if seen.total:
        bar = Table.grid()
        bar.add_row(ProgressBar(total=seen.total, completed=seen.with_rows, width=BAR_WIDTH))
        yield bar
    yield Text(line(seen))
    if seen.counts:
        yield _kinds(seen)
    if seen.claims:
        yield _workers(seen)
        yield from map(Text, _cells(seen))
    for words in seen.failures[-SHOWN_FAILURES:]:
        yield Text(f"failed: {words}", style="red")
    if len(seen.failures) > SHOWN_FAILURES:
        yield Text(f"and {len(seen.failures) - SHOWN_FAILURES} that failed before", style="red")


def _finished(seen: Snapshot) -> str:
    of = f" of {seen.total}" if seen.total is not None else ""
    return f"{seen.status('ok')}{of} finished"


def _working(seen: Snapshot) -> Iterator[str]:
    for name in ("failed", "skipped"):
        if seen.status(name):
            yield f"{seen.status(name)} {name}"
    if seen.running:
        count = sum(not worker.stale for worker in workers(seen.claims))
        yield f"{seen.running} taken by {count} worker{'s' if count > 1 else ''}"
    if seen.stale:
        yield f"{seen.stale} stale"
    if seen.done:
        yield "done" if seen.total is not None else "nobody is at work"
    elif not seen.running:
        yield "no cell taken just now" if seen.opened else "nobody is at work"


def _pace(seen: Snapshot) -> Iterator[str]:
    if seen.cells_per_minute is not None:
        yield f"{seen.cells_per_minute:.2g} rows a minute"
    if not seen.done and (words := time_left(seen.left_seconds or 0.0, seen.left_unknown)):
        yield words


def _kinds(seen: Snapshot) -> Table:
    table = Table("kind", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("finished", "failed", "skipped"):
        table.add_column(name, justify="right")
    for kind, counts in seen.counts.items():
        table.add_row(kind, *(str(counts.get(status, 0)) for status in ("ok", "failed", "skipped")))
    return table


def _workers(seen: Snapshot) -> Table:
    table = Table("worker", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("cells", justify="right")
    table.add_column("last sign of life", justify="right")
    table.add_column("")
    for worker in workers(seen.claims):
        state = f"gone, or silent for over {STALE_SECONDS:.0f} s" if worker.stale else "running"
        table.add_row(worker.name, str(worker.cells), f"{duration(worker.heartbeat)} ago", state)
    return table


def _cells(seen: Snapshot) -> Iterator[str]:
    """What runs by its titles, worker by worker; a block is taken as a whole, so the rest of a long one is
    counted."""
    live = [claim for claim in seen.claims if claim.cell and not claim.stale]
    for worker in workers(live):
        titles = [claim.cell for claim in live if claim.worker == worker.name]
        for title in titles[:SHOWN_CELLS]:
            yield f"running: {title}"
        rest = len(titles) - SHOWN_CELLS
        if rest > 0:
            yield f"and {rest} {'cell' if rest == 1 else 'cells'} more of {worker.name}"
