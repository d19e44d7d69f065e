"""What the rows of a study cannot say, told by the rows themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quantkv.drawing.style import BASELINE
from quantkv.measurements.kind import kind, on_a_page
from quantkv.studies.kind import studied
from quantkv.studies.study import Record, Study, citation, made_of


def limits(study: Study, kinds: Iterable[str]) -> list[str]:
    """A sentence for each limit; ``kinds`` are all those that rows of any study have."""
    if source := citation(study.rows[0]):
        return [f"From {source}: not measured here, so not to be ranked with what was."]
    records = study.records()
    timed = [limit for own in on_a_page() if own.timed for limit in own.page().limits(study)]
    others = [limit for own in on_a_page() if not own.timed for limit in own.page().limits(study)]
    found = [*others, *_unmeasured(records), *_tasks(kinds), *timed, *_weights(study), *_batch(study)]
    return list(filter(None, found))


def _unmeasured(records: Sequence[Record]) -> list[str]:
    """Formats without a number of a kind at any context, or that the kind was left out altogether."""
    labels = [label for label in dict.fromkeys(r["label"] for r in records) if label != BASELINE]
    found = []
    for own in map(kind, studied()):
        have = {r["label"] for r in records if r[f"{own.name}_status"] == "ok"}
        lacking = [label for label in labels if label not in have]
        if lacking:
            which = "any format" if len(lacking) == len(labels) else _listed(lacking)
            found.append(f"Not {own.measured}: {which}.")
    return found


def _tasks(kinds: Iterable[str]) -> list[str]:
    if set(kinds) - set(studied()):
        return []
    return ["No task was scored: KL on running text does not show whether a fact far back is still found."]


def _weights(study: Study) -> list[str]:
    weights = sorted({str(made_of(row, "weights")) for row in study.rows if made_of(row, "weights")})
    if not weights:
        return []
    return [f"Costs are on top of those of the weights ({', '.join(weights)}), which are not counted."]


def _batch(study: Study) -> list[str]:
    seeds = {record["seed"] for record in study.records()}
    one_seed = " and one seed" if len(seeds) == 1 else ""
    return [f"Batch {study.batch} only{one_seed}."]


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(labels))
