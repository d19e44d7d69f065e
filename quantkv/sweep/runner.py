"""One worker of a sweep: finds what is missing, measures it block by block, writes every cell the moment it
is known.

It knows nothing of models. It is handed a ``Measure`` that opens one model at a time and measures: the one in
``quantkv.sweep.process`` keeps each model in a process of its own, the one in ``quantkv.sweep.local`` does
the work there, tests hand in a fake.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from rich.console import Console

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.measurements.kind import OnCell, Result, Step
from quantkv.plugins import import_file
from quantkv.rows.cell import Cell
from quantkv.rows.claims import Claims
from quantkv.rows.files import Row, read_rows, write_row
from quantkv.rows.provenance import Clock
from quantkv.rows.row import build_row
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.answers import Tried, unopened
from quantkv.sweep.config import Sweep
from quantkv.sweep.engines import same_number
from quantkv.sweep.failures import Limits, describe, reason
from quantkv.sweep.forecast import Forecast
from quantkv.sweep.grid import Block, blocks, planned
from quantkv.sweep.progress import Display
from quantkv.sweep.summary import Summary
from quantkv.wording.escapes import one_line

WAIT_SECONDS = 1.0


class Session(Protocol):
    """One loaded model. A result is {status, reason, <kind>: section, effective, seconds, tokens}."""

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """Everything beside the cell itself that determines its number: weights, tokens, device, versions."""

    def check(self, cell: Cell) -> None:
        """Raise ``UnsupportedError`` when this model cannot run the cell."""

    def measure(self, cells: Sequence[Cell], on_cell: OnCell, step: Step) -> None:
        """Measure the cells of one block, of one kind."""

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        """The whole row, with protocol and provenance."""

    def close(self) -> None: ...


class Measure(Protocol):
    """Where measurements come from."""

    def preflight(self, sweep: Sweep) -> None:
        """Raise ``QuantKVError`` for what is wrong with the sweep as a whole, before anything is measured."""

    def open(self, model: ModelEntry, sweep: Sweep) -> Session: ...


def work(sweep: Sweep, tried: Tried, measure: Measure, console: Console) -> Summary:
    """Measure as one of those who share the folder. Cells with a failed row newer than ``tried`` are left."""
    for file in sweep.imports:  # before cells are made of formats that these bring
        import_file(file.path, file.sha256)
    with console.status("checking the settings"):
        measure.preflight(sweep)
    try:
        return _Runner(sweep, measure, tried, console).run()
    except _CannotWrite as error:
        raise QuantKVError(f"cannot write results to {tried.out}: {error}; finished cells are kept") from None


@dataclass(frozen=True)
class _End:
    """Why there are no more results of a block: ``label`` is the arm that broke it, None where that cannot be
    told; ``every`` arm without a result fails where nothing broke."""

    reason: str
    seconds: float
    label: str | None = None
    every: bool = False


def _unopened(cell: Cell) -> str:
    return cell.key(unopened(cell.requested(), cell.protocol))


class _CannotWrite(BaseException):
    """The folder takes no more rows: no failure of a cell, so nothing may go on as if it were one."""


class _Runner:
    def __init__(self, sweep: Sweep, measure: Measure, tried: Tried, console: Console) -> None:
        self.sweep, self.measure, self.tried, self.out = sweep, measure, tried, tried.out
        self.cells = planned(sweep)
        self.display = Display(self.cells, console, Forecast(sweep.workers))
        self.summary = Summary(self.out, total=len(self.cells))
        self.claims = Claims(self.out)
        self.limits = Limits()
        self.keys: dict[Cell, str] = {}
        self.rows: dict[tuple[str, str], str] = {}
        self.noted: set[str] = set()

    def run(self) -> Summary:
        with _terminate_as_interrupt(), self.claims, self.display:
            try:
                self._read_finished()
                free, busy = self.cells, list[Cell]()
                while free:
                    free, busy = self._until_free(busy + self._round(free))
            except KeyboardInterrupt:
                self.summary.interrupted = True
        return self.summary

    def _read_finished(self) -> None:
        for row in read_rows(self.out, warn=self.display.note):
            self.rows[row["kind"], row["key"]] = row["status"]
            self.display.forecast.learn_row(row)

    def _round(self, cells: list[Cell]) -> list[Cell]:
        """Measure what is there to be measured; returns the cells that other workers hold."""
        busy: list[Cell] = []
        for model in self.sweep.models:
            own = [cell for cell in cells if cell.model == model]
            if own:
                busy += self._run_model(model, own)
        return busy

    def _until_free(self, cells: list[Cell]) -> tuple[list[Cell], list[Cell]]:
        """Wait for other workers, without a model in memory; returns the cells they lost, and the rest."""
        free: list[Cell] = []
        if cells:
            self.display.doing(f"waiting for other workers to finish {len(cells)} cells")
        while cells and not free:
            time.sleep(WAIT_SECONDS)
            cells = [cell for cell in cells if not self._done_elsewhere(cell)]
            free = [cell for cell in cells if self.claims.is_free(self.keys[cell])]
        return free, [cell for cell in cells if cell not in free]

    def _run_model(self, model: ModelEntry, cells: list[Cell]) -> list[Cell]:
        """Open a model and measure its cells; returns those that other workers hold."""
        self.display.loading(model)
        clock = Clock()
        try:
            session = self.measure.open(model, self.sweep)
        except QuantKVError:
            raise
        except Exception as error:
            for cell in cells:
                self._fail_unopened(cell, f"loading the model: {describe(error)}", clock)
            return []
        with closing(session):
            missing = [cell for cell in cells if cell in self.keys or self._is_missing(cell, session)]
            return [cell for block in blocks(missing) for cell in self._run_block(block, session)]

    def _fail_unopened(self, cell: Cell, reason: str, clock: Clock) -> None:
        """A row of a model of which nothing is known; it goes when the model can be loaded."""
        self.keys[cell] = key = _unopened(cell)
        self.summary.keys.add(key)
        failed: dict[str, Any] = {"key": key, "status": "failed", "reason": reason}
        made = {"seconds": clock.seconds, "started": clock.started}
        row = build_row(cell.kind, cell.requested(), None, cell.protocol, None, made, **failed)
        self._write(cell, row, failed)

    def _is_missing(self, cell: Cell, session: Session) -> bool:
        """Whether the cell is yet to be measured, which its key tells."""
        clock = Clock()
        try:
            keys = [cell.key(facts) for facts in same_number(cell.kind, session.facts(cell))]
        except QuantKVError:
            raise
        except Exception as error:
            self._fail_unopened(cell, describe(error), clock)
            return False
        self._forget(cell, [_unopened(cell), *keys[1:]])
        finished = [key for key in keys if self.rows.get((cell.kind, key)) == "ok"]
        self.keys[cell] = key = (finished or keys)[0]
        if key in self.summary.keys:  # the number of an earlier cell
            self.summary.total -= 1
        elif finished:
            self.summary.finished_before += 1
        missing = key not in self.summary.keys and not finished
        self.summary.keys.add(key)
        if not missing:
            self.display.known(cell)
        return missing

    def _forget(self, cell: Cell, keys: list[str]) -> None:
        """Rows without numbers that stood for the cell under other keys."""
        for key in keys:
            if self.rows.get((cell.kind, key), "ok") != "ok":
                for path in self.out.glob(f"{cell.kind}-*-{key[:12]}.json"):
                    path.unlink(missing_ok=True)

    def _run_block(self, block: Block, session: Session) -> list[Cell]:
        """Measure a block; returns the cells of it that other workers hold."""
        open_cells = [cell for cell in block.cells if not self._done_elsewhere(cell)]
        claimed = [cell for cell in open_cells if self.claims.take(self.keys[cell], cell.title)]
        try:
            # Asked again now that they are ours: who held one a moment ago wrote its row before letting go.
            mine = [cell for cell in claimed if not self._done_elsewhere(cell)]
            runnable = tuple(cell for cell in mine if self._can_run(cell, session))
            if runnable:
                self.display.running(Block(runnable))
                self._measure(runnable, session)
        finally:  # after the rows are written, so that nobody finds a cell with neither
            for cell in claimed:
                self.claims.release(self.keys[cell])
        return [cell for cell in open_cells if cell not in claimed]

    def _done_elsewhere(self, cell: Cell) -> bool:
        """Whether another worker has dealt with the cell since this sweep began."""
        status = self.tried.status(cell.kind, self.keys[cell])
        if status is None:
            return False
        self.summary.elsewhere += 1
        self.summary.failed_elsewhere += status == "failed"
        self.display.known(cell)
        return True

    def _can_run(self, cell: Cell, session: Session) -> bool:
        """False, with a row that says why, where the cell is not to be tried."""
        clock = Clock()
        try:
            if (reason := self.limits.why_not(cell)) is None:
                session.check(cell)
                return True
            result: Result = {"status": "skipped", "reason": reason}
        except UnsupportedError as error:
            result = self._unsupported({"status": "skipped", "reason": str(error)})
        except Exception as error:
            result = {"status": "failed", "reason": describe(error), "seconds": clock.seconds}
        self._record(cell, result, session)
        return False

    def _measure(self, cells: tuple[Cell, ...], session: Session) -> None:
        """Run a block. The arm that breaks it fails; the others run again together, or one by one where
        nothing tells which arm it was."""
        left = list(cells)

        def on_arm(cell: Cell, result: Result) -> None:
            if cell in left:
                self._record(cell, self._unsupported(result), session)
                left.remove(cell)

        end = self._attempt(cells, on_arm, session)
        alone = len(cells) == 1 or end.every
        failed = [cell for cell in left if alone or cell.label == end.label]
        for cell in failed:
            result = {"status": "failed", "reason": end.reason, "seconds": end.seconds}
            self._record(cell, result, session)
        rest = tuple(cell for cell in left if cell not in failed)
        if failed and rest:
            self._measure(rest, session)
        elif rest:
            for cell in rest:
                self._measure((cell,), session)

    def _attempt(self, cells: tuple[Cell, ...], on_arm: OnCell, session: Session) -> _End:
        """Run a block once. What broke it is told without its exception, which may hold what the block held:
        that must be gone before the next."""
        clock = Clock()
        try:
            with self.display.forecast.block(cells[0].kind, cells[0].context, len(cells)):
                session.measure(cells, on_arm, self.display.step)
        except Exception as error:
            seconds = getattr(error, "seconds", clock.seconds)
            return _End(describe(error), seconds, getattr(error, "label", None))
        return _End("the measurement ended without a result for this cell", clock.seconds, every=True)

    def _unsupported(self, result: Result) -> Result:
        wrong = result["status"] == "skipped" and self.sweep.run.on_unsupported == "error"
        return {**result, "status": "failed"} if wrong else result

    def _record(self, cell: Cell, result: Result, session: Session) -> None:
        if result["status"] == "failed":
            result = {**result, "reason": reason(result.get("reason") or "")}
            self.limits.learn(cell, result["reason"])
        elif result.get("reason"):
            result = {**result, "reason": one_line(result["reason"])}
        self._write(cell, session.row(cell, result, self.keys[cell]), result)

    def _write(self, cell: Cell, row: Row, result: Result) -> None:
        try:
            write_row(row, self.out, tokens=result.get("tokens"))
        except OSError as error:
            raise _CannotWrite(error.strerror) from error
        self.summary.counts[row["status"]] += 1
        self.display.finished(cell, row["status"], row["reason"], result.get("seconds") or 0.0)
        self._say_notes(row)

    def _say_notes(self, row: Row) -> None:
        for note in (row.get("effective") or {}).get("notes") or []:
            text = f"{row['requested']['format']}: {note}"
            if text not in self.noted:
                self.noted.add(text)
                self.display.note(text)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """A polite kill (SIGTERM) ends a sweep as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
