"""What a sweep shows while it runs: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from quantkv.sweep.forecast import Forecast
from quantkv.sweep.naming import ModelNames
from quantkv.wording.escapes import visible
from quantkv.wording.streams import can_redraw

if TYPE_CHECKING:
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry
    from quantkv.sweep.grid import Block

_MARKS = {"ok": "[green]ok[/]", "failed": "[red]failed[/]", "skipped": "[yellow]skipped[/]"}


def duration(seconds: float) -> str:
    """``8 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(seconds: float, unknown: Mapping[str, int]) -> str:
    """``about 3 min left + unknown for 16 memory cells``; empty where there is nothing worth saying."""
    known = f"about {duration(seconds)} left" if seconds >= 0.5 else ""
    if not unknown:
        return known
    cells = " and ".join(f"{count} {kind}" for kind, count in unknown.items())
    return f"{known} + unknown for {cells} cells" if known else f"time left unknown for {cells} cells"


def _shown(text: str) -> str:
    return escape(visible(text))


class Display:
    """Counts finished cells and says what is running and how long the rest will take."""

    def __init__(self, cells: Iterable[Cell], console: Console, forecast: Forecast) -> None:
        self.console, self.forecast = console, forecast
        self._open = dict.fromkeys(cells)
        self._names = ModelNames(cell.model for cell in self._open)
        self._total = len(self._open)
        self._live = can_redraw(console)
        counts = SpinnerColumn(), MofNCompleteColumn(), BarColumn(bar_width=24), TimeElapsedColumn()
        words = TextColumn("{task.fields[left]}"), TextColumn("{task.description}")
        self._bar = Progress(*counts, *words, console=console, transient=True)
        self._task = self._bar.add_task("starting", total=self._total, left="")

    def __enter__(self) -> Display:
        if self._live:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bar.stop()

    def note(self, text: str) -> None:
        self._print(f"[yellow]note[/] {_shown(text)}")

    def _print(self, line: str) -> None:
        """A line of a log stays one line, however long."""
        self.console.print(line, highlight=False, soft_wrap=not self.console.is_terminal)

    def doing(self, text: str) -> None:
        self._bar.update(self._task, description=_shown(text), left=self._left())
        if not self._live:
            self._print(f"{self._counter()} {_shown(text)}")

    def loading(self, model: ModelEntry) -> None:
        self.doing(f"loading {self._names.of(model)}")

    def running(self, block: Block) -> None:
        head = block.head
        names = ", ".join(cell.label for cell in block.cells)
        self.doing(f"{head.kind}  context {head.context}  {names}")

    def step(self, what: str, done: int, total: int) -> None:
        """Where inside a block the measurement is; only the live bar shows it."""
        if self._live:
            self._bar.update(self._task, left=f"{_shown(what)} {done}/{total}  {self._left()}")

    def known(self, cell: Cell) -> None:
        """A cell that need not run: finished before, or another worker's."""
        self._open.pop(cell, None)
        self._bar.update(self._task, completed=self._done, left=self._left())

    def finished(self, cell: Cell, status: str, reason: str | None, seconds: float) -> None:
        if status == "ok":
            self.forecast.learn(cell.kind, cell.context, seconds)
        self.known(cell)
        if status != "ok" or not self._live:
            tail = f": {reason}" if reason else f"  {seconds:.1f} s  {self._left()}"
            self._print(f"{self._counter()} {_shown(self._title(cell))}  {_MARKS[status]}{_shown(tail)}")

    def _title(self, cell: Cell) -> str:
        """With its model, where there are several."""
        return f"{cell.title}, {self._names.of(cell.model)}" if self._names.several else cell.title

    @property
    def _done(self) -> int:
        return self._total - len(self._open)

    def _counter(self) -> str:
        return escape(f"[{self._done}/{self._total}]")

    def _left(self) -> str:
        return time_left(*self.forecast.left((cell.kind, cell.context) for cell in self._open))
