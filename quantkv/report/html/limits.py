"""What the rows of a study cannot say, told by the rows themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quantkv.drawing.style import BASELINE
from quantkv.studies.study import Record, Row, Study, citation, made_of, protocol_of
from quantkv.wording.numbers import missing
from quantkv.wording.parts import DIGITS

NAMES = {"quality": "scored", "speed": "timed", "memory": "weighed"}
NO_INTERVAL_BELOW = 8
BOOTSTRAP_FROM = 16


def limits(study: Study, kinds: Iterable[str]) -> list[str]:
    """A sentence for each limit; ``kinds`` are all those that rows of any study have."""
    if source := citation(study.rows[0]):
        return [f"From {source}: not measured here, so not to be ranked with what was."]
    records = study.records()
    found = [*_texts(study), *_windows(study), *_below_floor(records), *_unmeasured(records)]
    found += [*_tasks(kinds), *_machine(study), *_weights(study), *_batch(study)]
    return list(filter(None, found))


def _texts(study: Study) -> list[str]:
    protocols = [protocol_of(row) for row in _measured(study, "quality")]
    texts = sorted({(str(p.get("text")), str(p.get("text_sha256") or "")[:DIGITS]) for p in protocols})
    said = ", ".join(f"{text} (sha256 {digest})" if digest else text for text, digest in texts)
    return [
        f"Quality is that of one model on {said}: the same format can damage another model or text."
    ] * bool(texts)


def _windows(study: Study) -> list[str]:
    counts = sorted({int(p["windows"]) for p in _protocols(study) if isinstance(p.get("windows"), int)})
    if not counts:
        return []
    if counts[0] < NO_INTERVAL_BELOW:
        return [f"{counts[0]} windows are too few: small differences prove nothing."]
    kind = "Student's t" if counts[0] < BOOTSTRAP_FROM else "a bootstrap"
    return [f"Intervals cover the choice of windows ({counts[0]}, by {kind}), not that of model or text."]


def _below_floor(records: Sequence[Record]) -> list[str]:
    below = [
        r["label"]
        for r in records
        if not missing(r["kl_mean"]) and not missing(r["floor_path_kl"]) and r["kl_mean"] < r["floor_path_kl"]
    ]
    return [f"KL below the floor of the code path means nothing: {_listed(below)}."] if below else []


def _unmeasured(records: Sequence[Record]) -> list[str]:
    """Formats without a number of a kind at any context, or that the kind was left out altogether."""
    labels = [label for label in dict.fromkeys(r["label"] for r in records) if label != BASELINE]
    found = []
    for kind, word in NAMES.items():
        have = {r["label"] for r in records if r[f"{kind}_status"] == "ok"}
        lacking = [label for label in labels if label not in have]
        if lacking:
            found.append(f"Not {word}: {'any format' if len(lacking) == len(labels) else _listed(lacking)}.")
    return found


def _tasks(kinds: Iterable[str]) -> list[str]:
    if set(kinds) - set(NAMES):
        return []
    return ["No task was scored: KL on running text does not show whether a fact far back is still found."]


def _machine(study: Study) -> list[str]:
    rows = [row.get("provenance") or {} for row in _measured(study, "speed")]
    machines = sorted({str((made.get("machine") or {}).get(_part(made)) or "unknown") for made in rows})
    threads = sorted({str(made.get("threads")) for made in rows if made.get("threads")})
    if not machines:
        return []
    many = "" if threads == ["1"] else "s"
    on = f"{', '.join(machines)} with {', '.join(threads) or 'unknown'} thread{many}"
    return [
        f"Times are those of {on}: ratios carry over to other machines better than milliseconds, not fully."
    ]


def _part(made: dict[str, Any]) -> str:
    return "gpu" if (made.get("machine") or {}).get("gpu") else "cpu"


def _weights(study: Study) -> list[str]:
    weights = sorted({str(made_of(row, "weights")) for row in study.rows if made_of(row, "weights")})
    return [
        f"Costs are on top of those of the weights ({', '.join(weights)}), which are not counted."
    ] * bool(weights)


def _batch(study: Study) -> list[str]:
    seeds = {record["seed"] for record in study.records()}
    one_seed = " and one seed" if len(seeds) == 1 else ""
    return [f"Batch {study.batch} only{one_seed}."]


def _measured(study: Study, kind: str) -> list[Row]:
    return [row for row in study.rows if row["kind"] == kind and row.get("status") == "ok"]


def _protocols(study: Study) -> list[Any]:
    return [protocol_of(row) for row in _measured(study, "quality")]


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(labels))
