"""What a method may know of a model's layer before any token comes: how its keys turn, and constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quantkv.cache.kv_shapes import kv_shapes
from quantkv.cache.layer import ANY_WIDTH, fitting
from quantkv.cache.rotary import known_rope
from quantkv.codecs import Place, Rope
from quantkv.codecs.constants import constants_named
from quantkv.codecs.place import Which
from quantkv.spec.specs import CacheSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def layer_places(config: PreTrainedConfig, spec: CacheSpec, layer: int) -> Mapping[Which, Place]:
    """The places of a layer's keys and values; shapes are those that the configuration states, dtypes left
    open. Methods that need to know what nobody knows of the model refuse them."""
    known = kv_shapes(config, layer)
    shapes = dict(zip(("key", "value"), known or [(1, ANY_WIDTH)] * 2))
    rope, unknown = known_rope(config, layer) if spec.key.positions else (None, "")
    constants = constants_named(spec.constants) if spec.constants else None

    def place(which: Which, rope: Rope | None = None, unknown: str = "") -> Place:
        own = constants.at(layer, which) if constants else {}
        return Place(which, *shapes[which], layer=layer, rope=rope, constants=own, rope_unknown=unknown)

    places: dict[Which, Place] = {"key": place("key", rope, unknown), "value": place("value")}
    for half in spec.halves:  # what cannot stand there is refused before any token comes
        if known or half.tensor.positions:
            half.tensor.at(fitting(places[half.which], half.tensor))
    return places
