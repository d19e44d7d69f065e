"""What ran out of memory in a sweep, so that the same at a larger context is not tried."""

from __future__ import annotations

from quantkv.rows.cell import Cell
from quantkv.sweep.failures import ran_out_of_memory


class Limits:
    """Cells that ran out of memory, by model, format and kind."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str, str], list[Cell]] = {}

    def learn(self, cell: Cell, reason: str) -> None:
        if ran_out_of_memory(reason):
            self._failed.setdefault(_arm(cell), []).append(cell)

    def why_not(self, cell: Cell) -> str | None:
        """Which smaller cell of the same arm, in a batch no larger, ran out of memory; None when none did."""
        smaller = (
            known
            for known in self._failed.get(_arm(cell), [])
            if known.context < cell.context and known.batch <= cell.batch
        )
        known = next(smaller, None)
        return None if known is None else f"out of memory at a smaller context already: {known.title}"


def _arm(cell: Cell) -> tuple[str, str, str]:
    return cell.model.model_dump_json(), cell.spec_string, cell.kind
