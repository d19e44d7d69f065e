"""What a page says and draws of quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantkv.drawing.style import BASELINE
from quantkv.measurements.quality.kl_figure import KL
from quantkv.studies.column import Record
from quantkv.studies.curves import curves
from quantkv.studies.page import Chart, Guides, OnPage, Sentence, and_names, guide, measured
from quantkv.studies.study import CAUTION_KL, UNFIT_KL, Study, protocol_of
from quantkv.wording import numbers
from quantkv.wording.numbers import compact, missing
from quantkv.wording.parts import DIGITS

FLOOR_SHARE = 1e-2
NO_INTERVAL_BELOW = 8
BOOTSTRAP_FROM = 16
BARS = "Bars are intervals."
BOUNDS = ({"y": CAUTION_KL, "text": "caution"}, {"y": UNFIT_KL, "text": "unfit"})


def lead(here: Sequence[Record], worst: Mapping[str, str]) -> list[str]:
    scored = [r for r in here if not missing(r["kl_mean"]) and r["label"] != BASELINE]
    sound = [r for r in scored if worst[r["label"]] not in ("unfit", "caution")]
    named: dict[str, list[Record]] = {
        f"Damaged, with a mean KL of {UNFIT_KL:g} nats per token or more at some context": [
            r for r in scored if worst[r["label"]] == "unfit"
        ],
        f"To be used with caution, with a mean KL of {CAUTION_KL:g} or more": [
            r for r in scored if worst[r["label"]] == "caution"
        ],
        "No cost in perplexity that these windows can tell from zero": [
            r for r in sound if cost(r) == "none"
        ],
        "A small cost in perplexity": [r for r in sound if cost(r) == "some"],
        "A perplexity below that of the exact cache, beyond the interval": [
            r for r in sound if cost(r) == "gain"
        ],
        "Too few windows to tell whether it costs perplexity": [r for r in sound if cost(r) == "unknown"],
    }
    return [f"{said}: {and_names(records)}{_at_most(records)}." for said, records in named.items() if records]


def _at_most(records: Sequence[Record]) -> str:
    """How much those could still cost whose interval holds zero."""
    if any(cost(record) != "none" or record["verdict"] in ("unfit", "caution") for record in records):
        return ""
    highest = numbers.compact(max(record["delta_nll_high"] for record in records))
    return f" (ΔNLL at most {highest} nats per token)"


def cost(record: Record) -> str:
    """``none``, ``some`` or ``gain`` by where the interval of ΔNLL lies; ``unknown`` without an interval."""
    low, high = record["delta_nll_low"], record["delta_nll_high"]
    if missing(low) or missing(high):
        return "unknown"
    if low > 0:
        return "some"
    return "gain" if high < 0 else "none"


def sentence(record: Record) -> Sentence | None:
    if not missing(record["citation"]):
        return Sentence(f"Perplexity {numbers.fixed(record['perplexity'], 2)}", " as published.")
    if missing(record["kl_mean"]):
        return None
    delta = numbers.with_interval(
        record["delta_nll"], record["delta_nll_low"], record["delta_nll_high"], sign=True
    )
    kl = numbers.compact_interval(record["kl_mean"], record["kl_low"], record["kl_high"])
    top1 = numbers.percent(record["top1_agreement"])
    rest = f" (ΔNLL {delta}), KL {kl}, same first choice at {top1} % of tokens."
    return Sentence(f"Perplexity × {numbers.fixed(record['ppl_ratio'], 4)}", rest)


def limits(study: Study) -> list[str]:
    return [*_texts(study), *_windows(study), *_below_floor(study)]


def _texts(study: Study) -> list[str]:
    protocols = [protocol_of(row) for row in measured(study, "quality")]
    texts = sorted({(str(p.get("text")), str(p.get("text_sha256") or "")[:DIGITS]) for p in protocols})
    if not texts:
        return []
    said = ", ".join(f"{text} (sha256 {digest})" if digest else text for text, digest in texts)
    return [f"Quality is that of one model on {said}: the same format can damage another model or text."]


def _windows(study: Study) -> list[str]:
    counts = sorted({int(p["windows"]) for p in _protocols(study) if isinstance(p.get("windows"), int)})
    if not counts:
        return []
    if counts[0] < NO_INTERVAL_BELOW:
        return [f"{counts[0]} windows are too few: small differences prove nothing."]
    kind = "Student's t" if counts[0] < BOOTSTRAP_FROM else "a bootstrap"
    return [f"Intervals cover the choice of windows ({counts[0]}, by {kind}), not that of model or text."]


def _below_floor(study: Study) -> list[str]:
    below = [
        r["label"]
        for r in study.records()
        if not missing(r["kl_mean"]) and not missing(r["floor_path_kl"]) and r["kl_mean"] < r["floor_path_kl"]
    ]
    named = ", ".join(dict.fromkeys(below))
    return [f"KL below the floor of the code path means nothing: {named}."] if below else []


def _protocols(study: Study) -> list[Any]:
    return [protocol_of(row) for row in measured(study, "quality")]


def _note(study: Study) -> str:
    """A floor far below every value is told, not drawn: it would squeeze all that is to be seen."""
    floor, note = study.frame["floor_path_kl"].max(), "Mean KL divergence."
    if _floor_is_near(study):
        note += " The dotted line is the floor of the code path."
    elif floor > 0:
        note += f" The floor of the code path, {compact(floor, 1)}, lies below the axis."
    return f"{note} {BARS}" if study.frame["kl_low"].notna().any() else note


def _guides(study: Study) -> Guides:
    return guide(study, "floor_path_kl") if _floor_is_near(study) else []


def _floor_is_near(study: Study) -> bool:
    floor, kl = study.frame["floor_path_kl"].max(), study.frame["kl_mean"]
    return bool(floor > FLOOR_SHARE * kl[kl > 0].min())


CHARTS = (
    Chart(
        "kl",
        "Quality",
        "KL to the exact cache (nats per token)",
        "log",
        lambda study: curves(study, KL),
        _note,
        _guides,
        BOUNDS,
    ),
)
PAGE = OnPage(lead, sentence, CHARTS, limits)
