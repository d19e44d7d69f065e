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
from quantkv.codecs.registry import FAMILIES
from quantkv.peers.peer import Peer
from quantkv.plugins import Origin
from quantkv.policy import POLICIES
from quantkv.rows.kinds import known, origin
from quantkv.spec.specs import CacheSpec

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
    """Where a format's codecs and policies and a kind come from, by their names, as far as they
    have versions: a package's, or a file's SHA-256."""
    ours = spec.on_top if isinstance(spec, Peer) else spec
    found = dict(_origins(ours)) if isinstance(ours, CacheSpec) else {}
    if (measures := origin(kind)) is not None:
        found[f"kind {kind}"] = measures
    return {name: found[name] for name in sorted(found) if found[name].version}


def _origins(spec: CacheSpec) -> Iterator[tuple[str, Origin]]:
    for own in (spec, *(override for _, override in spec.layers)):
        yield from ((tensor.codec, FAMILIES.origin(tensor.codec)) for tensor in (own.key, own.value))
        yield own.policy, POLICIES.origin(own.policy)
