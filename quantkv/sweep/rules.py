"""Whose rule a format follows, where that is no part of quantkv: a package's of a version, or a file's."""

from __future__ import annotations

from collections.abc import Iterator

from quantkv.arms.arm import Arm
from quantkv.codecs.registry import FAMILIES
from quantkv.peers.peer import Peer
from quantkv.plugins import Origin
from quantkv.policy import POLICIES
from quantkv.spec.specs import CacheSpec


def rules(spec: Arm) -> dict[str, Origin]:
    """Where the codecs and policies of a format come from, by their names, as far as they have versions."""
    ours = spec.on_top if isinstance(spec, Peer) else spec
    found = dict(_origins(ours)) if isinstance(ours, CacheSpec) else {}
    return {name: found[name] for name in sorted(found) if found[name].version}


def _origins(spec: CacheSpec) -> Iterator[tuple[str, Origin]]:
    for own in (spec, *(override for _, override in spec.layers)):
        yield from ((tensor.codec, FAMILIES.origin(tensor.codec)) for tensor in (own.key, own.value))
        yield own.policy, POLICIES.origin(own.policy)
