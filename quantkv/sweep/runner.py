"""One worker of a sweep: finds what is missing, measures it block by block, writes every cell the moment it
is known.

It knows nothing of models. It is handed a ``Measure`` that opens one model at a time and measures: the one in
``quantkv.sweep.process`` keeps each model in a process of its own, the one in ``quantkv.sweep.local`` does
the work there, tests hand in a fake.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from rich.console import Console

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.plugins import import_file
from quantkv.rows.claims import Claims
from quantkv.rows.files import Row, read_rows, write_row
from quantkv.rows.provenance import Clock
from quantkv.rows.row import build_row
from quantkv.sweep.answers import unopened
from quantkv.sweep.config import ModelEntry, Sweep
from quantkv.sweep.engines import same_number
from quantkv.sweep.failures import describe, reason
from quantkv.sweep.forecast import Forecast
from quantkv.sweep.grid import Block, Cell, blocks
from quantkv.sweep.limits import Limits
from quantkv.sweep.progress import Display
from quantkv.sweep.session import Measure, Result, Session
from quantkv.sweep.shards import planned
from quantkv.sweep.summary import Summary
from quantkv.sweep.timing import terminate_as_interrupt
from quantkv.sweep.tried import Tried
from quantkv.wording.escapes import one_line

WAIT_SECONDS = 1.0


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


def _unopened(cell: Cell) -> str:
    return cell.key(unopened(cell.requested(), cell.protocol))


class _CannotWrite(BaseException):
    """The folder takes no more rows: no failure of a cell, so nothing may go on as if it were one."""


class _Runner:
    def __init__(self, sweep: Sweep, measure: Measure, tried: Tried, console: Console) -> None:
        self.sweep, self.measure, self.tried, self.out = sweep, measure, tried, tried.out
        self.cells = planned(sweep)
        self.display = Display(
            self.cells, console, Forecast({"memory": sweep.memory.workers if sweep.memory else 1})
        )
        self.summary = Summary(self.out, total=len(self.cells))
        self.claims = Claims(self.out)
        self.limits = Limits()
        self.keys: dict[int, str] = {}
        self.noted: set[str] = set()

    def run(self) -> Summary:
        with terminate_as_interrupt(), self.claims, self.display:
            try:
                self._read_finished()
                free, busy = self.cells, list[Cell]()
                while free:
                    free, busy = self._until_free(busy + self._round(free))
            except KeyboardInterrupt:
                self.summary.interrupted = True
        return self.summary

    def _read_finished(self) -> None:
        rows = read_rows(self.out, warn=self.display.note)
        self.rows = {(row["kind"], row["key"]): row["status"] for row in rows}
        for row in rows:
            seconds = (row.get("provenance") or {}).get("seconds")
            if row["status"] == "ok" and isinstance(seconds, int | float):
                self.display.forecast.learn(row["kind"], row["requested"]["context"], seconds)

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
            free = [cell for cell in cells if self.claims.is_free(self.keys[id(cell)])]
        return free, [cell for cell in cells if cell not in free]

    def _run_model(self, model: ModelEntry, cells: list[Cell]) -> list[Cell]:
        self.display.loading(model)
        busy: list[Cell] = []
        clock = Clock()
        try:
            session = self.measure.open(model, self.sweep)
        except QuantKVError:
            raise
        except Exception as error:
            for cell in cells:
                self._fail_unopened(cell, f"loading the model: {describe(error)}", clock)
            return busy
        with closing(session):
            missing = [cell for cell in cells if self._is_missing(cell, session)]
            for block in blocks(missing):
                busy += self._run_block(block, session)
        return busy

    def _fail_unopened(self, cell: Cell, reason: str, clock: Clock) -> None:
        """A row of a model of which nothing is known; it goes when the model can be loaded."""
        self.keys[id(cell)] = key = _unopened(cell)
        self.summary.keys.add(key)
        failed: dict[str, Any] = {"key": key, "status": "failed", "reason": reason}
        made = {"seconds": clock.seconds, "started": clock.started}
        row = build_row(cell.kind, cell.requested(), None, cell.protocol, None, made, **failed)
        self._write(cell, row, failed)

    def _is_missing(self, cell: Cell, session: Session) -> bool:
        if id(cell) in self.keys:
            return True
        clock = Clock()
        try:
            keys = [cell.key(facts) for facts in same_number(cell.kind, session.facts(cell))]
        except QuantKVError:
            raise
        except Exception as error:
            self._fail_unopened(cell, describe(error), clock)
            return False
        finished = (key for key in keys if self.rows.get((cell.kind, key)) == "ok")
        self.keys[id(cell)] = key = next(finished, keys[0])
        repeated = key in self.summary.keys
        self.summary.keys.add(key)
        self._forget(cell, [_unopened(cell), *keys[1:]])
        if repeated:
            self.summary.total -= 1
        elif self.rows.get((cell.kind, key)) == "ok":
            self.summary.finished_before += 1
        else:
            return True
        self.display.known(cell)
        return False

    def _forget(self, cell: Cell, keys: list[str]) -> None:
        """Rows without numbers that stood for the cell under other keys."""
        for key in keys:
            if self.rows.get((cell.kind, key), "ok") != "ok":
                for path in self.out.glob(f"{cell.kind}-*-{key[:12]}.json"):
                    path.unlink(missing_ok=True)

    def _run_block(self, block: Block, session: Session) -> list[Cell]:
        """Measure a block; returns the cells of it that other workers hold."""
        open_cells = [cell for cell in block.cells if not self._done_elsewhere(cell)]
        claimed = [cell for cell in open_cells if self.claims.take(self.keys[id(cell)], cell.title)]
        try:
            mine = [cell for cell in claimed if not self._done_elsewhere(cell)]  # a moment ago
            runnable = tuple(cell for cell in mine if self._can_run(cell, session))
            if runnable:
                self.display.running(Block(runnable))
                self._measure(runnable, session)
        finally:
            for cell in claimed:
                self.claims.release(self.keys[id(cell)])
        return [cell for cell in open_cells if cell not in claimed]

    def _done_elsewhere(self, cell: Cell) -> bool:
        """Whether another worker has dealt with the cell since this sweep began."""
        status = self.tried.status(cell.kind, self.keys[id(cell)])
        if status is None:
            return False
        self.summary.elsewhere += 1
        self.summary.failed_elsewhere += status == "failed"
        self.display.known(cell)
        return True

    def _can_run(self, cell: Cell, session: Session) -> bool:
        if (reason := self.limits.why_not(cell)) is not None:
            self._record(cell, {"status": "skipped", "reason": reason}, session)
            return False
        clock = Clock()
        try:
            session.check(cell)
        except UnsupportedError as error:
            self._record(cell, self._unsupported({"status": "skipped", "reason": str(error)}), session)
            return False
        except Exception as error:
            result = {"status": "failed", "reason": describe(error), "seconds": clock.seconds}
            self._record(cell, result, session)
            return False
        return True

    def _measure(self, cells: tuple[Cell, ...], session: Session) -> None:
        """Run a block. The arm that breaks it fails; the others run again together, or one by one where
        nothing tells which arm it was."""
        left = {id(cell): cell for cell in cells}

        def on_arm(cell: Cell, result: Result) -> None:
            if id(cell) in left:
                self._record(cell, self._unsupported(result), session)
                del left[id(cell)]

        on_clock = self.display.forecast.block(cells[0].kind, cells[0].context, len(cells))
        clock = Clock()
        try:
            with on_clock:
                getattr(session, cells[0].kind)(cells, on_arm, self.display.step)
            failed, reason = list(left.values()), "the measurement ended without a result for this cell"
            seconds = clock.seconds
        except Exception as error:
            reason, label = describe(error), getattr(error, "label", None)
            guilty = [cell for cell in left.values() if cell.label == label]
            failed = guilty or (list(left.values()) if len(cells) == 1 else [])
            seconds = getattr(error, "seconds", clock.seconds)
        for cell in failed:
            self._record(cell, {"status": "failed", "reason": reason, "seconds": seconds}, session)
            del left[id(cell)]
        rest = tuple(left.values())
        for part in [rest] * bool(rest) if failed else [(cell,) for cell in rest]:
            self._measure(part, session)

    def _unsupported(self, result: Result) -> Result:
        wrong = result["status"] == "skipped" and self.sweep.run.on_unsupported == "error"
        return {**result, "status": "failed"} if wrong else result

    def _record(self, cell: Cell, result: Result, session: Session) -> None:
        if result["status"] == "failed":
            result = {**result, "reason": reason(result.get("reason") or "")}
            self.limits.learn(cell, result["reason"])
        elif result.get("reason"):
            result = {**result, "reason": one_line(result["reason"])}
        self._write(cell, session.row(cell, result, self.keys[id(cell)]), result)

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
