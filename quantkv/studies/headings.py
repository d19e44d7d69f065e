"""A number of a row by its name alone, which ends in its unit: the head of its column, and its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quantkv.wording import numbers
from quantkv.wording.numbers import DASH, missing

DIGITS = 3
MEANS = {"kl": "kl_mean", "ratio": "ratio_to_baseline"}
"""Numbers that are not named as the ends of their intervals are."""
MIB = 2.0**-20
SHARE = "%"
UNITS = (
    (r"_bytes$", "MiB", MIB),
    (r"_tokens_per_s$", "tokens/s", 1.0),
    (r"_gb_s$", "GB/s", 1.0),
    (r"_ms(?=_|$)", "ms", 1.0),
)
"""Part of a name, the unit it stands for, and the factor to it."""
SHARES = re.compile(r"^exact_match|^chance$|agreement|fraction$|^equal_tokens$|^repeated")
NATS = re.compile(r"(^|_)(nll|kl)(_|$)")
WORDS = {"nll": "NLL", "kl": "KL", "ppl": "perplexity", "ref": "reference", "top1": "top-1"}
WORDS |= {"low": "(low)", "high": "(high)"}
LABELS = {
    "n": "questions",
    "hits": "right answers",
    "hits_ref": "right answers, exact cache",
    "exact_match": "right",
    "exact_match_ref": "right, exact cache",
    "p_value": "p",
    "log_prob": "log-probability",
    "log_prob_ref": "log-probability, exact cache",
    "delta_log_prob": "Δ log-probability",
    "packed_read_fraction": "packed reads",
    "inconclusive_because": "inconclusive because",
    "delta_nll": "ΔNLL",
    "kl_mean": "KL",
    "ppl_ratio": "perplexity ratio",
    "nll_ref": "NLL, exact cache",
    "perplexity_ref": "perplexity, exact cache",
    "floor_path_kl": "KL floor of the code path",
    "scale_bf16_kl": "KL of the model in bf16",
    "repeated_ref": "repeated, exact cache",
    "ratio_to_baseline": "decode time ÷ DynamicCache",
    "ratio_to_16bit": "× 16-bit cache",
}
"""Numbers whose name in a row says too little to a reader."""


def heading(name: str) -> tuple[str, str, float]:
    """``prefill_peak_bytes`` to ``prefill peak``, ``MiB`` and the factor from bytes."""
    for pattern, unit, scale in UNITS:
        if re.search(pattern, name):
            return _words(re.sub(pattern, "", name)), unit, scale
    if SHARES.search(name):
        return _words(name), SHARE, 100.0
    if "log_prob" in name:
        return _words(name), "nats/answer", 1.0
    return _words(name), "nats/token" if NATS.search(name) else "", 1.0


def _words(name: str) -> str:
    return LABELS.get(name) or " ".join(WORDS.get(word, word) for word in name.split("_"))


def ends_of(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The names of the two ends of a number's interval, by the number's own."""
    known = dict.fromkeys(names)
    stems = [name.removesuffix("_low") for name in known if name.endswith("_low")]
    pairs = {MEANS.get(stem, stem): (f"{stem}_low", f"{stem}_high") for stem in stems}
    return {name: pair for name, pair in pairs.items() if name in known and set(pair) <= set(known)}


def number_text(name: str, section: Mapping[str, Any], ends: Sequence[str] = ()) -> str:
    """The number as text, with its interval where that is known."""
    value: Any = section.get(name)
    if missing(value) or isinstance(value, str | bool):
        return DASH if missing(value) else {True: "yes", False: "no"}.get(value, str(value))
    _, unit, scale = heading(name)
    if isinstance(value, int) and scale == 1:
        return str(value)
    interval: list[Any] = [section.get(end) for end in ends]
    if not interval or any(map(missing, interval)):
        return numbers.percent(value) if unit == SHARE else digits(value * scale)
    return _with_interval(name, *(scale * number for number in (value, *interval)))


def _with_interval(name: str, value: float, low: float, high: float) -> str:
    if name.startswith("delta_"):
        return numbers.with_interval(value, low, high, sign=True)
    if heading(name)[1] == SHARE:
        return f"{value:.0f} [{low:.0f}, {high:.0f}]"
    return numbers.compact_interval(value, low, high)


def digits(value: float) -> str:
    """Three significant ones, with an exponent where a number is very small."""
    return numbers.compact(value, DIGITS) if abs(value) < 1 else numbers.significant(value, DIGITS)
