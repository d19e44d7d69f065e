"""From the name of a number in a row, which ends in its unit, to words for the head of a column."""

from __future__ import annotations

import re

MIB = 2.0**-20
UNITS = (
    (r"_bytes$", "MiB", MIB),
    (r"_tokens_per_s$", "tokens/s", 1.0),
    (r"_gb_s$", "GB/s", 1.0),
    (r"_ms(?=_|$)", "ms", 1.0),
)
"""Part of a name, the unit it stands for, and the factor to it."""
NATS = re.compile(r"(^|_)(nll|kl)(_|$)")
WORDS = {"nll": "NLL", "kl": "KL", "ppl": "perplexity", "ref": "reference", "top1": "top-1"}
WORDS |= {"low": "(low)", "high": "(high)"}


def heading(name: str) -> tuple[str, str, float]:
    """``prefill_peak_bytes`` to ``prefill peak``, ``MiB`` and the factor from bytes."""
    for pattern, unit, scale in UNITS:
        if re.search(pattern, name):
            return _words(re.sub(pattern, "", name)), unit, scale
    return _words(name), "nats/token" if NATS.search(name) else "", 1.0


def _words(name: str) -> str:
    return " ".join(WORDS.get(word, word) for word in name.split("_"))
