"""What quality says of itself."""

from __future__ import annotations

from collections.abc import Mapping

from quantkv.measurements.kind import Kind, in_file
from quantkv.measurements.quality.columns import COLUMNS


class QualityKind(Kind):
    """How far a format's predictions are from those of the exact cache."""

    name = "quality"
    version = 2
    by_engine = False
    arrays = "tokens_scored"
    metrics = (
        "nll", "nll_ref", "perplexity", "perplexity_ref", "ppl_ratio", "delta_nll", "delta_nll_low",
        "delta_nll_high", "kl_mean", "kl_low", "kl_high", "kl_median", "kl_max", "kl_p99",
        "top1_agreement", "top5_agreement", "packed_read_fraction", "floor_path_kl", "scale_bf16_kl",
        "tokens_scored", "bits_packed", "bits_cache", "bits_cache_16", "cache_bytes",
    )  # fmt: skip
    columns = COLUMNS
    measured = "scored"
    published = (
        "perplexity", "perplexity_ref", "ppl_ratio", "nll", "nll_ref", "delta_nll", "kl_mean",
        "top1_agreement", "bits_packed", "bits_cache",
    )  # fmt: skip
    figures: Mapping[str, str] = {
        "pareto": "KL divergence from the exact cache against the bits that the cache holds per element, "
        "exact tokens counted at 16 bits (bits_cache_16), at the largest context. A format is on the front "
        "if none has both fewer bits and a lower mean KL.",
        "ppl_ratio": "Perplexity relative to the exact cache against context.",
        "kl": "KL divergence from the exact cache against context.",
        "kl_by_position": "KL divergence from the exact cache along the scored span, at the largest context.",
    }

    settings = in_file("settings:QualitySettings")
    open = in_file("cells:QualityCells")
    caption = in_file("report:caption")
    changes = in_file("report:changes")
    panels = in_file("figures:PANELS")
    page = in_file("page:PAGE")


KIND = QualityKind()
