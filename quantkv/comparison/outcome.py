"""What a comparison found, for a program, a frame and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from quantkv.comparison.matching import PLACE, Row
from quantkv.rows.row import strict_json
from quantkv.studies.changes import WORSE, Change

if TYPE_CHECKING:
    import pandas as pd

EXIT_WORSE, EXIT_FAILED = 12, 3
CELL = ("kind", *PLACE, "format_a", "format_b", "part", "prefill")
MADE = (
    "quantkv", "commit", "torch", "transformers", "python", "machine", "device", "threads",
    "weights", "revision", "fingerprint",
)  # fmt: skip
"""Fields of provenance in which rows are compared, in the order in which differences are told."""


@dataclass(frozen=True, slots=True)
class ProvenanceDifference:
    """A field of provenance that differs in ``pairs`` pairs of rows."""

    field: str
    a: str
    b: str
    pairs: int


@dataclass(slots=True)
class Pair:
    """Two rows that answer the same question. ``differences`` are settings they do not share; ``obstacle``
    says why no number of them is compared."""

    a: Row
    b: Row
    changes: list[Change]
    obstacle: str | None
    differences: list[str]

    @property
    def broke(self) -> bool:
        """Measured in a, failed in b."""
        return self.a["status"] == "ok" and self.b["status"] == "failed"

    def cell(self) -> dict[str, Any]:
        """Which cell this is, in the words of the first row; both formats."""
        protocol = self.a.get("protocol") or {}
        a, b = (row["requested"]["format"] for row in (self.a, self.b))
        found = place(self.a) | {"format_a": a, "format_b": b, "prefill": protocol.get("prefill")}
        found["part"] = protocol.get("task") or protocol.get("mode")
        return {name: found[name] for name in CELL}


@dataclass(slots=True)
class Comparison:
    """All pairs, what is in only one of both, and where the two come from. ``near`` are rows of ``only_a``
    and ``only_b`` that are of one cell but for the ``differences``, which keep them from being compared."""

    a: str
    b: str
    pairs: list[Pair]
    only_a: list[Row] = field(default_factory=list)
    only_b: list[Row] = field(default_factory=list)
    near: list[Pair] = field(default_factory=list)

    @property
    def origins(self) -> list[ProvenanceDifference]:
        """Where the two come from, each difference told once. A field that one row lacks is none."""
        seen = Counter(difference for pair in self.pairs for difference in _made_otherwise(pair))
        found = [ProvenanceDifference(*difference, pairs=count) for difference, count in seen.items()]
        return sorted(found, key=lambda origin: MADE.index(origin.field))

    @property
    def verdicts(self) -> Counter[str]:
        """How many numbers got which verdict."""
        return Counter(change.verdict for pair in self.pairs for change in pair.changes)

    @property
    def exit_code(self) -> int:
        """12 when a number is worse, else 3 when a cell failed that did not fail before, else 0."""
        if self.verdicts[WORSE]:
            return EXIT_WORSE
        return EXIT_FAILED if any(pair.broke for pair in self.pairs) else 0

    def to_frame(self) -> pd.DataFrame:
        """One line per number, and one per pair that could not be compared."""
        import pandas as pd

        return pd.DataFrame(list(self._records()), columns=[*CELL, *Change.__dataclass_fields__, "obstacle"])

    def to_dict(self) -> dict[str, Any]:
        found = {"a": self.a, "b": self.b, "exit_code": self.exit_code, "verdicts": dict(self.verdicts)}
        pairs = [
            {**pair.cell(), "obstacle": pair.obstacle, "differences": pair.differences}
            | {"changes": [asdict(change) for change in pair.changes]}
            for pair in self.pairs
        ]
        alone = {"only_a": list(map(place, self.only_a)), "only_b": list(map(place, self.only_b))}
        near = [{**pair.cell(), "differences": pair.differences} for pair in self.near]
        made = [asdict(origin) for origin in self.origins]
        return strict_json(found | {"pairs": pairs, **alone, "near": near, "provenance": made})

    def _records(self) -> Iterator[dict[str, Any]]:
        for pair in self.pairs:
            for change in pair.changes:
                yield pair.cell() | asdict(change) | {"obstacle": None}
            if pair.obstacle is not None:
                yield pair.cell() | {"obstacle": pair.obstacle}


def place(row: Row) -> dict[str, Any]:
    """Which cell a row is, its protocol aside."""
    asked = row["requested"]
    return {"kind": row["kind"], "format": asked["format"]} | {name: asked.get(name) for name in PLACE}


def _made_otherwise(pair: Pair) -> Iterator[tuple[str, str, str]]:
    ours, theirs = pair.a.get("provenance") or {}, pair.b.get("provenance") or {}
    for name in MADE:
        a, b = _text(ours.get(name)), _text(theirs.get(name))
        if a != b and a and b:
            yield name, a, b


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(str(part) for part in value.values() if part is not None)
    return "" if value is None else str(value)
