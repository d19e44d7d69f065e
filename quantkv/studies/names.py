"""The figures by name: what each shows, and from which rows it is made. Needs no other library."""

from __future__ import annotations

TITLES = {
    "pareto": "KL divergence from the exact cache against the bits that the cache holds per element, exact "
    "tokens counted at 16 bits (bits_cache_16), at the largest context. A format is on the front if "
    "none has both fewer bits and a lower mean KL.",
    "memory": "Memory the cache holds against context.",
    "decode_ms": "Decode time against context; bars from the 10th to the 90th percentile.",
    "decode_tps": "Decode speed against context; bars from the 10th to the 90th percentile.",
    "crossover": "The context from which on a format decodes faster than DynamicCache; the gain in time is "
    "interpolated linearly between two measured contexts, never extrapolated.",
    "ppl_ratio": "Perplexity relative to the exact cache against context.",
    "kl": "KL divergence from the exact cache against context.",
    "kl_by_position": "KL divergence from the exact cache along the scored span, at the largest context.",
    "overview": "Memory, decode speed, perplexity ratio and KL divergence against context.",
    "retrieval": "Share of right answers by the length of the context and the depth of what is asked for.",
    "layers": "Relative error of keys, values and attention output by layer and head.",
}
INTERVALS = {
    "crossover": ("ratio_low", "; bars from the interval of the ratio of times."),
    "ppl_ratio": ("delta_nll_low", ", with intervals."),
    "kl": ("kl_low", ", with intervals."),
}
"""How a title goes on where the named number of the summary says that there are intervals."""
KINDS_OF = {
    "pareto": ("quality",),
    "memory": ("memory",),
    "decode_ms": ("speed",),
    "decode_tps": ("speed",),
    "crossover": ("speed",),
    "ppl_ratio": ("quality",),
    "kl": ("quality",),
    "kl_by_position": ("quality",),
    "overview": ("quality", "speed", "memory"),
}
"""Figures of a study of quality, speed and memory, and whose rows each draws."""

FIGURES = tuple(TITLES)
FILES = ("png", "pdf", "svg")
OTHER_NAMES = {"decode_tokens_per_s": "decode_tps"}
