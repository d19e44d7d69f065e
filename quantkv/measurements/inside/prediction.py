"""What the errors inside should cost: one number per format, to be laid beside its measured KL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MIN_FORMATS = 3
"""A rank correlation of two formats is always 1 or −1."""


def layer_damage(errors: pd.DataFrame) -> pd.Series:
    """Squared relative RMS error of each layer's attention output, by (format, layer).

    Heads count by the power of their exact output, so that a head that says nothing cannot shout.
    """
    power = errors["output_rms"] ** 2
    sums = errors.assign(gap=errors["output_error"] ** 2 * power, power=power).groupby(
        ["format", "layer"], sort=False
    )[["gap", "power"]]
    totals = sums.sum(min_count=1)
    return (totals["gap"] / totals["power"]).rename("damage")


def predicted_damage(errors: pd.DataFrame) -> pd.Series:
    """The predictor, by format: the sum of `layer_damage` over layers.

    KL grows with the square of a small disturbance, and errors of layers that have nothing to do with each
    other add in squares. It has no unit: it ranks formats and says nothing about nats.
    """
    return layer_damage(errors).groupby("format", sort=False).sum(min_count=1).rename("predicted")


def damage_table(errors: pd.DataFrame, kl_mean: Mapping[str, float]) -> pd.DataFrame:
    """Predicted damage beside measured mean KL (nats per token), by format; NaN where it was not measured."""
    return predicted_damage(errors).to_frame().assign(kl_mean=lambda frame: frame.index.map(kl_mean))


def rank_correlation(table: pd.DataFrame) -> float | None:
    """Spearman's rank correlation of the two columns over measured formats; None below three of them."""
    from scipy.stats import spearmanr

    measured = table.dropna()
    if len(measured) < MIN_FORMATS or measured.nunique().min() < 2:
        return None
    return float(spearmanr(measured["predicted"], measured["kl_mean"]).statistic)
