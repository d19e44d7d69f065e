"""The figures of quality by name."""

from quantkv.measurements.quality.front_figure import pareto, points
from quantkv.measurements.quality.kl_figure import kl
from quantkv.measurements.quality.position_figure import has_positions, kl_by_position
from quantkv.measurements.quality.ratio_figure import ppl_ratio
from quantkv.studies.panel import Panel

PANELS = {
    "pareto": Panel(pareto, holds=lambda study: bool(points(study)[1])),
    "ppl_ratio": Panel(ppl_ratio, ("ppl_ratio",), "perplexity ratio", interval="delta_nll_low"),
    "kl": Panel(kl, ("kl_mean",), "KL divergence", interval="kl_low"),
    "kl_by_position": Panel(kl_by_position, holds=has_positions),
}
