"""What a cell's key says of the engine that serves it, and of rules that are no part of quantkv.

An engine decides times and, token by token, what is generated, but no quality number: the decode-exact pass
encodes, decodes and attends in PyTorch, whichever engine serves. So quality cells of every native build have
one key, with the engine that the first rows name, and rows under the keys of other builds, or of no build,
answer them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantkv.arms.arm import Arm
from quantkv.codecs.constants import constants_origin
from quantkv.codecs.registry import FAMILIES, MAPS
from quantkv.peers.peer import Peer
from quantkv.plugins import Origin
from quantkv.policy import POLICIES
from quantkv.rows.kinds import known, origin
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import TensorSpec

OF_QUALITY = "native-v4"
ENGINES = (OF_QUALITY, "native-v3", "native-v2", "native-base", "reference")


def keyed_engine(kind: str, engine: str) -> str:
    """What a key says of the engine that serves a packed cache here."""
    return OF_QUALITY if not known(kind).by_engine and engine.startswith("native-") else engine


def same_number(kind: str, facts: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The facts of a cell, then those that a row of the same number may have been keyed with elsewhere."""
    yield facts
    if not known(kind).by_engine and facts.get("engine") in ENGINES:
        yield from (dict(facts) | {"engine": other} for other in ENGINES if other != facts["engine"])


def rules(spec: Arm, kind: str) -> dict[str, Origin]:
    """Where a format's codecs, maps, policies and constants and a kind come from, by their names, as far as
    they have versions: a package's, or a file's SHA-256, and of constants their own."""
    found = {name: FAMILIES.origin(name) for name in _codecs(spec)}
    found |= {word: MAPS.origin(word) for word in _maps(spec)}
    found |= {own.policy: POLICIES.origin(own.policy) for own in _layered(spec)}
    named = {own.constants for own in _layered(spec)} - {""}
    found |= {f"constants {name}": constants_origin(name) for name in named}
    if (measures := origin(kind)) is not None:
        found[f"kind {kind}"] = measures
    return {name: found[name] for name in sorted(found) if found[name].version}


def versions_of(spec: Arm) -> dict[str, int]:
    """The versions of a format's codecs and maps, as far as they are not the first: these have the keys that
    they had when one number stood for all."""
    found = {name: FAMILIES.get(name).version for name in _codecs(spec)}
    found |= {word: MAPS.get(word).version for word in _maps(spec)}
    return {name: found[name] for name in sorted(found) if found[name] != 1}


def _codecs(spec: Arm) -> Iterator[str]:
    return (tensor.codec for tensor in _tensors(spec))


def _maps(spec: Arm) -> Iterator[str]:
    return (word for tensor in _tensors(spec) for word in tensor.maps)


def _tensors(spec: Arm) -> Iterator[TensorSpec]:
    return (tensor for own in _layered(spec) for tensor in (own.key, own.value))


def _layered(spec: Arm) -> Iterator[CacheSpec]:
    """Those that lie behind an arm: of all layers, and of some."""
    ours = spec.on_top if isinstance(spec, Peer) else spec
    if isinstance(ours, CacheSpec):
        yield from (ours, *(override for _, override in ours.layers))
