"""What methods are given beside their data, by a name that formats say (`+c.NAME`): rotations, means,
thresholds, codebooks, for each layer, tensor and head.

A cache and all its forks share them, so their bytes stand beside those of the cache; their digest stands in
keys of rows and in saved caches.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from quantkv.codecs.place import Which
from quantkv.errors import QuantKVError
from quantkv.plugins import Origin, Registry


class Constants:
    """Tensors by layer, by tensor ("key" or "value"), by name: copied, in float32 on the CPU. Raises
    QuantKVError for numbers that are not finite."""

    def __init__(self, layers: Mapping[int, Mapping[Which, Mapping[str, Tensor]]]) -> None:
        if odd := {which for tensors in layers.values() for which in tensors} - {"key", "value"}:
            raise QuantKVError(f"constants of {', '.join(map(repr, sorted(odd)))}; legal: 'key', 'value'")
        self._held = {
            (layer, which, name): _copied(f"{name} of the {which}s of layer {layer}", x)
            for layer, tensors in layers.items()
            for which, named in tensors.items()
            for name, x in named.items()
        }
        self.digest = self._digest()

    def at(self, layer: int, which: Which) -> dict[str, Tensor]:
        """Those of one place."""
        return {name: x for (own, tensor, name), x in self._held.items() if (own, tensor) == (layer, which)}

    def of_any_layer(self, which: Which) -> dict[str, Tensor]:
        """Those of the first layer that has some, for what shapes alone decide."""
        layers = sorted(layer for layer, tensor, _ in self._held if tensor == which)
        return self.at(layers[0], which) if layers else {}

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self._held.values())

    def _digest(self) -> str:
        """SHA-256 over names, shapes and bytes."""
        found = hashlib.sha256()
        for key in sorted(self._held):
            found.update(f"{key} {tuple(self._held[key].shape)}".encode())
            found.update(self._held[key].numpy().tobytes())
        return found.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _copied(what: str, x: Tensor) -> Tensor:
    copy = x.detach().to("cpu", torch.float32, copy=True).contiguous()
    if not torch.isfinite(copy).all():
        raise QuantKVError(f"constants must be finite: {what} is not")
    return copy


def register_constants(name: str, constants: Constants) -> None:
    """Give constants the name by which formats say them, `+c.NAME`: letters, digits and hyphens."""
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise QuantKVError(f"constants named {name!r}; legal: a-z, 0-9 and hyphens")
    CONSTANTS.add(name, constants, "this program")


def constants_origin(name: str) -> Origin:
    """Where constants come from, with their digest for a version."""
    return Origin(CONSTANTS.origin(name).name, constants_named(name).digest)


def constants_named(name: str) -> Constants:
    """QuantKVError naming the legal ones where there are none of this name."""
    return CONSTANTS.get(name)


ENTRY_POINTS = "quantkv.constants"
"""Installed packages offer constants under this entry-point group."""
CONSTANTS: Registry[Constants] = Registry("set of constants", ENTRY_POINTS, register_constants)
