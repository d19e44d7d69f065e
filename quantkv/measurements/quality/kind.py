"""What quality says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from quantkv.measurements.kind import Kind, Panels
from quantkv.measurements.quality.columns import COLUMNS
from quantkv.studies.kind import Changes, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quantkv.measurements.kind import Loaded, Measurement
    from quantkv.measurements.quality.settings import QualitySettings
    from quantkv.rows.axes import Axes
    from quantkv.rows.cell import Cell
    from quantkv.rows.settings import ModelEntry, Section
    from quantkv.studies.page import OnPage


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

    def caption(self, rows: Sequence[Row]) -> str:
        from quantkv.measurements.quality.caption import caption

        return caption(rows)

    def changes(self, a: Row, b: Row) -> Changes:
        from quantkv.measurements.quality.changes import changes

        return changes(a, b)

    def panels(self) -> Panels:
        from quantkv.measurements.quality.figures import PANELS

        return PANELS

    def page(self) -> OnPage:
        from quantkv.measurements.quality.page import PAGE

        return PAGE

    @property
    def settings(self) -> type[Section]:
        from quantkv.measurements.quality.settings import QualitySettings

        return QualitySettings

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        from quantkv.measurements.quality.settings import contexts
        from quantkv.rows.axes import formats
        from quantkv.rows.cell import Cell

        asked: QualitySettings = sweep.section(self.name)
        whole = asked.protocol.whole is not None  # which leaves nothing for a seed to pick
        seeds = sweep.seeds[:1] if whole else sweep.seeds
        for prefill, seed, context in product(asked.protocol.prefill, seeds, contexts(sweep)):
            protocol = {"text": asked.text.label} | asked.protocol.with_prefill(prefill).row()
            place: dict[str, Any] = {"model": model, "context": context, "seed": seed}
            for label, spec in formats(sweep):
                yield Cell(kind=self.name, label=label, spec=spec, protocol=protocol, **place)

    def check(self, sweep: Axes) -> None:
        from quantkv.measurements.quality.settings import contexts

        contexts(sweep)

    def tokens_after(self, sweep: Axes) -> int:
        protocol = sweep.section(self.name).protocol
        return protocol.score if protocol.whole is None else 0

    def open(self, loaded: Loaded) -> Measurement:
        from quantkv.measurements.quality.cells import QualityCells

        return QualityCells(loaded)


KIND = QualityKind()
