"""Quality as a curve: against context length on the same targets, or along the scored span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError

if TYPE_CHECKING:
    import pandas as pd

    from quantkv.rows.frames import Evaluation

Row = Mapping[str, Any]
NAMES = ("model", "format", "spec", "context", "seed")
VALUES = ("kl_mean", "kl_low", "kl_high", "delta_nll", "delta_nll_low", "delta_nll_high")
AGREEMENT = ("top1_agreement", "top5_agreement", "packed_read_fraction", "tokens_scored")
SPAN = ("start", "stop", "n")


def curves(source: str | Path | Evaluation | Iterable[Row], *, by: str = "context") -> pd.DataFrame:
    """KL and ΔNLL (nats per token, paired with the exact cache of the same run) of quality rows as curves.

    `by="context"`: a line per format and context; raises QuantKVError where the contexts of a format did not
    score the same targets. `by="position"`: a line per format, context and run of offsets `[start, stop)`
    after the context. `source` is a folder of results, an evaluation, or rows.
    """
    import pandas as pd

    if by not in ("context", "position"):
        raise QuantKVError(f"curves by {by!r}; legal: context, position")
    rows = [row for row in _rows(source) if row["kind"] == "quality" and row["status"] == "ok"]
    if by == "position":
        return pd.DataFrame(list(_along_the_span(rows)), columns=[*NAMES, "prefill", *SPAN, *VALUES])
    _check_targets(rows)
    lines = [_names(row) | _picked(row["quality"], (*VALUES, *AGREEMENT)) for row in rows]
    frame = pd.DataFrame(lines, columns=[*NAMES, "prefill", *VALUES, *AGREEMENT])
    return frame.sort_values(["model", "spec", "prefill", "seed", "context"], ignore_index=True)


def _rows(source: Any) -> list[Row]:
    if isinstance(source, str | Path):
        from quantkv.rows.files import read_rows

        return list(read_rows(source))
    return list(getattr(source, "rows", source))


def _names(row: Row) -> dict[str, Any]:
    return _picked(row["requested"], NAMES) | {"prefill": row["protocol"].get("prefill")}


def _picked(section: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Older rows lack newer fields."""
    return {name: section.get(name) for name in names}


def _along_the_span(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for part in row["quality"].get("positions") or []:
            yield _names(row) | _picked(part, (*SPAN, *VALUES))


def _check_targets(rows: Iterable[Row]) -> None:
    """A difference between contexts means something only on one and the same tokens."""
    seen: dict[tuple[Any, ...], tuple[int, Any]] = {}
    for row in rows:
        names = _names(row)
        context = names.pop("context")
        targets = (
            row["protocol"].get("text_sha256"),
            [(w["start"], w["n"]) for w in row["quality"]["windows"]],
        )
        other, known = seen.setdefault(tuple(names.values()), (context, targets))
        if targets != known:
            raise QuantKVError(
                f"{names['format']}: contexts {other} and {context} scored different targets; "
                "measure them in one run"
            )
