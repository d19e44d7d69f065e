"""What quality says of itself."""

from collections.abc import Sequence

from quantkv.measurements.kind import Kind
from quantkv.measurements.quality.columns import COLUMNS
from quantkv.studies.kind import Changes, Row


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
    published = (
        "perplexity", "perplexity_ref", "ppl_ratio", "nll", "nll_ref", "delta_nll", "kl_mean",
        "top1_agreement", "bits_packed", "bits_cache",
    )  # fmt: skip

    def caption(self, rows: Sequence[Row]) -> str:
        from quantkv.measurements.quality.caption import caption

        return caption(rows)

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.quality.changes import changes

        return changes(a, b)


KIND = QualityKind()
