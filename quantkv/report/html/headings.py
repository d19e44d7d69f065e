"""From the name of a number in a row, which ends in its unit, to words for the head of a column."""

from __future__ import annotations

import re

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
    unit = "nats/answer" if "log_prob" in name else "nats/token" if NATS.search(name) else ""
    return _words(name), unit, 1.0


def _words(name: str) -> str:
    return LABELS.get(name) or " ".join(WORDS.get(word, word) for word in name.split("_"))
