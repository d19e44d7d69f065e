"""What a terminal prints of an inspection: the errors of each format, and the hottest channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from quantkv.wording.streams import bare_table

if TYPE_CHECKING:
    import pandas as pd

ERRORS = {"key_error": "keys", "value_error": "values", "logit_error": "logits", "output_error": "output"}


def error_table(errors: pd.DataFrame, damage: pd.DataFrame) -> Table:
    """A row per format: errors in the median layer and in the worst, predicted damage, measured KL."""
    medians = [f"{word}\nmedian" for word in ERRORS.values()]
    others = ("output\nworst (layer)", "predicted\ndamage", "mean KL\nnats/token")
    table = bare_table(("format", *medians, *others), left=("format",))
    for label, rows in errors.groupby("format", sort=False):
        layers = rows.groupby("layer")[list(ERRORS)].mean()
        worst = layers["output_error"].idxmax()
        cells = [f"{layers[name].median():.2g}" for name in ERRORS]
        cells.append(f"{layers['output_error'].max():.2g} ({worst})")
        predicted, kl = damage.loc[label, ["predicted", "kl_mean"]]
        table.add_row(Text(str(label)), *cells, f"{predicted:.2g}", "-" if kl != kl else f"{kl:.2g}")
    return table


def outlier_table(statistics: pd.DataFrame, count: int = 5) -> Table:
    """The layers with the hottest channels: the largest ratio to the median channel, and where it is."""
    names = ("layer", "tensor", "hottest ÷ median", "head", "channel", "constant part", "kurtosis")
    table = bare_table(names, left=("tensor",))
    hottest = statistics.loc[statistics.groupby(["layer", "tensor"])["outlier_ratio"].idxmax()]
    for row in hottest.nlargest(count, "outlier_ratio").itertuples():
        numbers = f"{row.outlier_ratio:.3g}", str(row.head), str(row.hot_channel)
        table.add_row(str(row.layer), row.tensor, *numbers, f"{row.hot_offset:.0%}", f"{row.kurtosis:.3g}")
    return table
