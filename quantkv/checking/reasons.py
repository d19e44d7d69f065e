"""Why a format hurts a model, through which layers, keys or values, and which near formats would hurt it less
as far as the inside views tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quantkv.codecs import codec_family
from quantkv.measurements.inside.inspection import Inspection
from quantkv.measurements.inside.prediction import layer_damage
from quantkv.spec.specs import CacheSpec, LayerRange
from quantkv.spec.tensors import DEFAULT_GROUP, DEFAULT_SINKS, TensorSpec

if TYPE_CHECKING:
    import pandas as pd


HOT = 20.0
"""Hottest over median channel from which a reason names it; plain models show 5 to 15."""
CONSTANT = 0.8
BLAME = 4.0
"""One tensor is blamed alone where its squared error is so many times that of the other."""
FEW_LAYERS = 0.25
MOST_DAMAGE = 0.8
MUCH_BETTER = 0.5
"""Advice must at least halve the predicted damage."""
MOST_ADVICE = 3
WIDER = {"int2": "int4", "int3": "int4", "int4": "int8", "int5": "int8", "int6": "int8"}


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


def alternatives(spec: CacheSpec, diagnosis: Diagnosis) -> dict[str, CacheSpec]:
    """Formats near `spec` that could help, by name: other sharing of key scales, more bits, sinks, and the
    heavy layers exact."""
    found = [candidate for candidate in _near(spec, diagnosis) if candidate != spec]
    return {candidate.name: candidate for candidate in found}


def _near(spec: CacheSpec, diagnosis: Diagnosis) -> Iterator[CacheSpec]:
    if "key" in diagnosis.blamed and _can_share_per_channel(spec.key):
        yield replace(spec, key=_per_channel(spec.key))
    if diagnosis.heavy:
        yield spec.with_layers(dict.fromkeys(layer_ranges(diagnosis.heavy), "fp16"))
    if spec.sinks == 0:
        yield replace(spec, sinks=DEFAULT_SINKS)
    for name in diagnosis.blamed:
        tensor = spec.key if name == "key" else spec.value
        if tensor.codec in WIDER:
            wider = replace(tensor, codec=WIDER[tensor.codec])
            yield replace(spec, key=wider) if name == "key" else replace(spec, value=wider)


def layer_ranges(layers: Sequence[int]) -> list[str]:
    """Ascending layers as specs write them: neighbours joined, such as `0-1` and `5`."""
    starts = [layer for layer in layers if layer - 1 not in layers]
    ends = [layer for layer in layers if layer + 1 not in layers]
    return [str(LayerRange(first, last)) for first, last in zip(starts, ends, strict=True)]


def _can_share_per_channel(tensor: TensorSpec) -> bool:
    return codec_family(tensor.codec).affine and tensor.sharing != "channel"


def _per_channel(tensor: TensorSpec) -> TensorSpec:
    flush = -(-tensor.flush // DEFAULT_GROUP) * DEFAULT_GROUP
    return replace(tensor, sharing="channel", group=DEFAULT_GROUP, flush=flush)


def advice(predicted: Mapping[str, float], label: str, bits: Mapping[str, float]) -> list[str]:
    """Sentences on the alternatives that at least halve the predicted damage of `label`, smallest first.

    One is left out where another holds no more bits and is predicted to do less damage.
    """
    own = predicted[label]
    better, least = list[str](), MUCH_BETTER * own
    for name in sorted(bits, key=lambda name: (bits[name], predicted[name])):
        if predicted[name] <= least:
            better.append(name)
            least = predicted[name]
    return [
        f"try {name}: {bits[name]:.2f} bits on full pages, predicted damage {own / predicted[name]:.3g} "
        "times smaller"
        for name in better[:MOST_ADVICE]
    ]
