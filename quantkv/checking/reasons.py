"""Why a format hurts a model: which layers err, through keys or values, and what is special there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkv.measurements.inside.inspection import Inspection
from quantkv.measurements.inside.prediction import layer_damage
from quantkv.spec.specs import CacheSpec

if TYPE_CHECKING:
    import pandas as pd

HOT = 20.0
"""Hottest over median channel from which a reason names it; plain models show 5 to 15."""
CONSTANT = 0.8
BLAME = 4.0
"""One tensor is blamed alone where its squared error is so many times that of the other."""
FEW_LAYERS = 0.25
MOST_DAMAGE = 0.8


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`heavy`: the few layers that hold most of the predicted damage, none where it is spread over many.
    `blamed`: key, value or both."""

    heavy: tuple[int, ...]
    blamed: tuple[str, ...]
    words: list[str]


def diagnose(inspection: Inspection, label: str, spec: CacheSpec) -> Diagnosis:
    """What the inside views say about the format called `label`."""
    errors = inspection.errors[inspection.errors["format"] == label]
    damage = layer_damage(errors).loc[label]
    heavy = heavy_layers(damage)
    blamed = blamed_tensors(errors[errors["layer"].isin(heavy)] if heavy else errors)
    words = [_where(damage, heavy, blamed), _how_much(errors)]
    if "key" in blamed and spec.key.sharing != "channel":
        words += hot_keys(inspection.statistics)
    return Diagnosis(heavy, blamed, words)


def heavy_layers(damage: pd.Series) -> tuple[int, ...]:
    """The fewest layers that hold `MOST_DAMAGE`, in order; none where that takes more than a quarter."""
    ordered = damage.sort_values(ascending=False)
    count = int((ordered.cumsum() < MOST_DAMAGE * ordered.sum()).sum()) + 1
    few = max(1, round(FEW_LAYERS * len(damage)))
    return tuple(sorted(int(layer) for layer in ordered.index[:count])) if count <= few else ()


def blamed_tensors(errors: pd.DataFrame) -> tuple[str, ...]:
    """Whether the keys, the values or both make the attention output wrong."""
    power = errors["output_rms"] ** 2
    keys, values = (float((errors[f"output_error_{name}"] ** 2 * power).sum()) for name in ("keys", "values"))
    if keys > BLAME * values:
        return ("key",)
    return ("value",) if values > BLAME * keys else ("key", "value")


def hot_keys(statistics: pd.DataFrame) -> list[str]:
    """A sentence on the layers whose hottest key channel is `HOT` times the median one or more."""
    keys = statistics[(statistics["tensor"] == "key") & (statistics["outlier_ratio"] >= HOT)]
    if keys.empty:
        return []
    layers, most = sorted(set(keys["layer"])), keys["outlier_ratio"].max()
    constant = (keys["hot_offset"] >= CONSTANT).all()
    cure = "share key scales per channel" + (" or centre the keys" if constant else "")
    kind = "nearly constant" if constant else "changing from token to token"
    return [
        f"{layer_words(layers)} {'has' if len(layers) == 1 else 'have'} key channels up to {most:.0f} times "
        f"the rest, {kind}, which no scale per token can hold: {cure}"
    ]


def layer_words(layers: Sequence[int]) -> str:
    """`layer 3`, `layers 0 and 1`, `layers 0, 1 and 5`."""
    names = [str(layer) for layer in layers]
    if len(names) == 1:
        return f"layer {names[0]}"
    return f"layers {', '.join(names[:-1])} and {names[-1]}"


def _where(damage: pd.Series, heavy: tuple[int, ...], blamed: tuple[str, ...]) -> str:
    through = " and ".join(f"{name}s" for name in blamed)
    if not heavy:
        return f"the damage is spread over many layers and comes through their {through}"
    share = damage.loc[list(heavy)].sum() / damage.sum()
    verb = "holds" if len(heavy) == 1 else "hold"
    return f"{layer_words(heavy)} {verb} {share:.0%} of the predicted damage, through {through}"


def _how_much(errors: pd.DataFrame) -> str:
    output = errors["output_error"].groupby(errors["layer"]).mean()
    return (
        f"relative error of packed keys {errors['key_error'].mean():.1%}, of packed values "
        f"{errors['value_error'].mean():.1%}; attention outputs are off by {output.median():.1%} in the "
        f"median layer, {output.max():.1%} in layer {output.idxmax()}"
    )
