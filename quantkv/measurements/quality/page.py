"""What a page says and draws of quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
SAID = {
    "unfit": f"Damaged, with a mean KL of {UNFIT_KL:g} nats per token or more at some context",
    "caution": f"To be used with caution, with a mean KL of {CAUTION_KL:g} or more",
    "none": "No cost in perplexity that these windows can tell from zero",
    "some": "A small cost in perplexity",
    "gain": "A perplexity below that of the exact cache, beyond the interval",
    "unknown": "Too few windows to tell whether it costs perplexity",
}
BOUNDS = ({"y": CAUTION_KL, "text": "caution"}, {"y": UNFIT_KL, "text": "unfit"})


def lead(here: Sequence[Record], worst: Mapping[str, str]) -> list[str]:
    scored = [record for record in here if not missing(record["kl_mean"]) and record["label"] != BASELINE]
    named: dict[str, list[Record]] = {}
    for record in scored:
        verdict = worst[record["label"]]
        named.setdefault(verdict if verdict in ("unfit", "caution") else cost(record), []).append(record)
    said = [(words, named[name]) for name, words in SAID.items() if name in named]
    return [f"{words}: {and_names(records)}{_at_most(records)}." for words, records in said]


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
    deltas = (record[name] for name in ("delta_nll", "delta_nll_low", "delta_nll_high"))
    delta = numbers.with_interval(*deltas, sign=True)
    kl = numbers.compact_interval(record["kl_mean"], record["kl_low"], record["kl_high"])
    top1 = numbers.percent(record["top1_agreement"])
    rest = f" (ΔNLL {delta}), KL {kl}, same first choice at {top1} % of tokens."
    return Sentence(f"Perplexity × {numbers.fixed(record['ppl_ratio'], 4)}", rest)


def limits(study: Study) -> list[str]:
    return [*_texts(study), *_windows(study), *_below_floor(study)]


def _texts(study: Study) -> list[str]:
    found = {(str(p.get("text")), str(p.get("text_sha256") or "")[:DIGITS]) for p in _protocols(study)}
    texts = sorted(found)
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
    below = study.frame["label"][study.frame["kl_mean"] < study.frame["floor_path_kl"]]
    named = ", ".join(below.unique())
    return [f"KL below the floor of the code path means nothing: {named}."] if named else []


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


AXIS = "KL to the exact cache (nats per token)"
CHARTS = (Chart("kl", "Quality", AXIS, "log", partial(curves, metric=KL), _note, _guides, BOUNDS),)
PAGE = OnPage(lead, sentence, CHARTS, limits)
