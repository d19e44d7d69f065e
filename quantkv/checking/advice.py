"""What to try instead of a format that hurts: near formats that help as far as the inside views tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from quantkv.checking.reasons import Diagnosis
from quantkv.codecs import codec_family
from quantkv.spec.specs import CacheSpec, LayerRange
from quantkv.spec.tensors import DEFAULT_GROUP, DEFAULT_SINKS, TensorSpec

MUCH_BETTER = 0.5
"""Advice must at least halve the predicted damage."""
MOST_ADVICE = 3
WIDER = {"int2": "int4", "int3": "int4", "int4": "int8", "int5": "int8", "int6": "int8"}


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
