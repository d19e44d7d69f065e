"""Runs a sweep: finds what is missing, measures it block by block, writes every cell the moment it is known.

The runner knows nothing of models. It is handed a ``Measure`` that opens one model at a time and has the
measuring functions; the one in ``quantkv.sweep.local`` runs in this process, tests hand in a fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.sweep.claims import Claims, prepare_folder
from quantkv.sweep.config import ModelEntry, Sweep
from quantkv.sweep.forecast import Forecast
from quantkv.sweep.grid import Block, Cell, blocks, expand
from quantkv.sweep.progress import Display
from quantkv.sweep.results import Row, read_rows, write_row
from quantkv.sweep.timing import CellTimeout, terminate_as_interrupt, time_limit

Result = Mapping[str, Any]
OnArm = Callable[[Cell, Result], None]
Step = Callable[[str, int, int], None]


class Session(Protocol):
    """One loaded model. A result is {status, reason, <kind>: section, effective, seconds, tokens}."""

    def facts(self, cell: Cell) -> Mapping[str, Any]:
        """Everything beside the cell itself that determines its number: weights, tokens, device, versions."""

    def check(self, cell: Cell) -> None:
        """Raise ``UnsupportedError`` when this model cannot run the cell."""

    def quality(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def speed(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def memory(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def retrieval(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def generation(self, cells: tuple[Cell, ...], on_arm: OnArm, step: Step) -> None: ...

    def row(self, cell: Cell, result: Result, key: str) -> Row:
        """The whole row, with protocol and provenance."""

    def close(self) -> None: ...


class Measure(Protocol):
    """Where measurements come from."""

    def preflight(self, sweep: Sweep) -> None:
        """Raise ``QuantKVError`` for what is wrong with the sweep as a whole, before anything is measured."""

    def open(self, model: ModelEntry, sweep: Sweep) -> Session: ...


@dataclass
class Summary:
    """What a run did; ``exit_code`` is 0, 3 when cells failed, 130 when it was interrupted."""

    out: Path
    total: int = 0
    finished_before: int = 0
    elsewhere: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0, "skipped": 0})
    keys: set[str] = field(default_factory=set)
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        return 3 if self.counts["failed"] else 0

    @property
    def unfinished(self) -> int:
        return self.total - self.finished_before - sum(self.counts.values())

    def rows(self) -> list[Row]:
        """The rows of this sweep, measured now or before."""
        return [row for row in read_rows(self.out, warn=lambda _: None) if row["key"] in self.keys]


def run_sweep(sweep: Sweep, *, measure: Measure | None = None, console: Console | None = None) -> Summary:
    """Measure every cell of the sweep that has no finished row yet."""
    if measure is None:
        from quantkv.sweep.local import LocalMeasure

        measure = LocalMeasure()
    console = console or Console()
    out = prepare_folder(sweep.run.out)
    with console.status("checking the settings"):
        measure.preflight(sweep)
    try:
        return _Runner(sweep, measure, out, console).run()
    except _CannotWrite as error:
        raise QuantKVError(f"cannot write results to {out}: {error}; finished cells are kept") from None


class _CannotWrite(BaseException):
    """The folder takes no more rows: no failure of a cell, so nothing may go on as if it were one."""


class _Runner:
    def __init__(self, sweep: Sweep, measure: Measure, out: Path, console: Console) -> None:
        self.sweep, self.measure, self.out = sweep, measure, out
        self.cells = expand(sweep)
        self.display = Display(
            self.cells, console, Forecast({"memory": sweep.memory.workers if sweep.memory else 1})
        )
        self.summary = Summary(out, total=len(self.cells))
        self.claims = Claims(out)
        self.keys: dict[int, str] = {}
        self.noted: set[str] = set()

    def run(self) -> Summary:
        with terminate_as_interrupt(), self.claims, self.display:
            try:
                self._read_finished()
                for model in self.sweep.models:
                    self._run_model(model, [cell for cell in self.cells if cell.model == model])
            except KeyboardInterrupt:
                self.summary.interrupted = True
        return self.summary

    def _read_finished(self) -> None:
        rows = read_rows(self.out, warn=self.display.note)
        self.finished = {(row["kind"], row["key"]): row for row in rows if row["status"] == "ok"}
        for row in self.finished.values():
            seconds = (row.get("provenance") or {}).get("seconds")
            if isinstance(seconds, int | float):
                self.display.forecast.learn(row["kind"], row["requested"]["context"], seconds)

    def _run_model(self, model: ModelEntry, cells: list[Cell]) -> None:
        self.display.doing(f"loading {model.id}")
        with _opened(self.measure, model, self.sweep) as session:
            missing = [cell for cell in cells if self._is_missing(cell, session)]
            for block in blocks(missing):
                self._run_block(block, session)

    def _is_missing(self, cell: Cell, session: Session) -> bool:
        key = cell.key(session.facts(cell))
        self.keys[id(cell)] = key
        repeated = key in self.summary.keys
        self.summary.keys.add(key)
        if repeated:
            self.summary.total -= 1
        elif (cell.kind, key) in self.finished:
            self.summary.finished_before += 1
        else:
            return True
        self.display.known(cell)
        return False

    def _run_block(self, block: Block, session: Session) -> None:
        cells = [cell for cell in block.cells if self._claim(cell)]
        try:
            runnable = tuple(cell for cell in cells if self._is_supported(cell, session))
            if runnable:
                self.display.running(Block(runnable))
                self._measure(runnable, session)
        finally:
            for cell in cells:
                self.claims.release(self.keys[id(cell)])

    def _claim(self, cell: Cell) -> bool:
        """False for a cell that another worker is measuring, or has finished since this sweep began."""
        key = self.keys[id(cell)]
        if not self.claims.take(key):
            self.summary.elsewhere += 1
        elif self._finished_meanwhile(cell, key):
            self.claims.release(key)
            self.summary.finished_before += 1
        else:
            return True
        self.display.known(cell)
        return False

    def _finished_meanwhile(self, cell: Cell, key: str) -> bool:
        files = self.out.glob(f"{cell.kind}-*-{key[:12]}.json")
        return any(
            row["key"] == key and row["status"] == "ok"
            for file in files
            for row in read_rows(file, warn=lambda _: None)
        )

    def _is_supported(self, cell: Cell, session: Session) -> bool:
        try:
            session.check(cell)
        except UnsupportedError as error:
            self._record(cell, {"status": "skipped", "reason": str(error), "seconds": 0.0}, session)
            return False
        return True

    def _measure(self, cells: tuple[Cell, ...], session: Session) -> None:
        """Run a block; if it breaks as a whole, the cells left run one by one, so none fails another."""
        left = {id(cell): cell for cell in cells}

        def on_arm(cell: Cell, result: Result) -> None:
            if id(cell) in left:
                self._record(cell, result, session)
                del left[id(cell)]

        limit = self.sweep.run.cell_timeout
        run = getattr(session, cells[0].kind)
        on_clock = self.display.forecast.block(cells[0].kind, cells[0].context, len(cells))
        try:
            with time_limit(limit and limit * len(cells)), on_clock:
                run(cells, on_arm, self.display.step)
            reason = "the measurement ended without a result for this cell"
        except (Exception, CellTimeout) as error:
            reason = describe(error)
            if len(cells) > 1 and not isinstance(error, CellTimeout):
                for cell in list(left.values()):
                    self._measure((cell,), session)
                return
        for cell in left.values():
            self._record(cell, {"status": "failed", "reason": reason, "seconds": 0.0}, session)

    def _record(self, cell: Cell, result: Result, session: Session) -> None:
        if result["status"] == "skipped" and self.sweep.run.on_unsupported == "error":
            result = {**result, "status": "failed"}
        row = session.row(cell, result, self.keys[id(cell)])
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
def _opened(measure: Measure, model: ModelEntry, sweep: Sweep) -> Iterator[Session]:
    session = measure.open(model, sweep)
    try:
        yield session
    finally:
        session.close()


def describe(error: BaseException) -> str:
    """One line; the kind of error too when it is not one of ours."""
    text = " ".join(str(error).split())
    if isinstance(error, QuantKVError | CellTimeout):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
