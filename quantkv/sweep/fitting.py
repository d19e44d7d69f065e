"""What a model can take, before its weights are loaded: how many tokens, which formats on which layers, and
which settings do nothing to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantkv.arms.arm import Arm
from quantkv.errors import QuantKVError
from quantkv.peers.peer import Peer
from quantkv.rows.settings import ModelEntry, Policy
from quantkv.spec.specs import CacheSpec
from quantkv.sweep.config import Sweep


@dataclass(frozen=True)
class Fitted:
    """A spec with the layers that cannot hold it left exact; ``reasons`` says why, layer by layer, and
    ``packed`` how many do hold it."""

    spec: CacheSpec
    reasons: dict[int, str]
    packed: int

    @property
    def notes(self) -> list[str]:
        """One for each reason, naming its layers."""
        by_reason: dict[str, list[int]] = {}
        for layer, reason in self.reasons.items():
            by_reason.setdefault(reason, []).append(layer)
        return [
            f"layers {', '.join(map(str, layers))} stay exact: {reason}"
            for reason, layers in by_reason.items()
        ]


def fit(config: Any, spec: CacheSpec) -> Fitted:
    """The spec as it can run on a model; unchanged where no layer can hold it."""
    from transformers import DynamicCache

    from quantkv.cache.kv_shapes import check_fits
    from quantkv.cache.quantized import packs

    layers = DynamicCache(config=config).layers
    specs = {index: spec.for_layer(index, len(layers)) for index in range(len(layers))}
    packed = [index for index, layer in enumerate(layers) if packs(specs[index], layer)]
    reasons: dict[int, str] = {}
    for index in packed:
        try:
            check_fits(specs[index], config, index)
        except QuantKVError as error:
            reasons[index] = str(error)
    if len(reasons) == len(packed):
        return Fitted(spec, {}, 0)
    fitting = spec.with_layers(dict.fromkeys(reasons, "exact")) if reasons else spec
    return Fitted(fitting, reasons, len(packed) - len(reasons))


def without_effect(policy: Policy, spec: Arm) -> list[str]:
    """A note for each setting of a sweep's policy that a format does not take, because it keeps its own."""
    if not isinstance(spec, CacheSpec | Peer):
        return []
    if isinstance(spec, Peer) and spec.on_top is None:
        return [f"policy.{name} has no effect: a peer keeps its own" for name in _given(policy)]
    ours = spec.on_top if isinstance(spec, Peer) else spec
    assert ours is not None, "peers without one are dealt with"
    runs = {"sinks": {ours.sinks}}
    runs |= {name: {getattr(ours.key, name), getattr(ours.value, name)} for name in ("recent", "flush")}
    return [
        f"policy.{name} has no effect: the format keeps its own, {' and '.join(map(str, sorted(runs[name])))}"
        for name, asked in _given(policy).items()
        if not runs[name] & set(asked)
    ]


def _given(policy: Policy) -> dict[str, tuple[int | None, ...]]:
    settings = {name: getattr(policy, name) for name in ("sinks", "recent", "flush")}
    return {name: values for name, values in settings.items() if None not in values}


def model_config(entry: ModelEntry) -> Any | None:
    """The configuration alone; None where only loading the model will tell what is wrong with it. A name that
    is no model at all raises QuantKVError, before anything is measured."""
    from quantkv.models.loading import config_alone

    return config_alone(entry.location, revision=entry.revision)


def tokens_needed(sweep: Sweep) -> int:
    """The longest sequence any cell runs: the largest context and what is scored or decoded after it."""
    return max(sweep.contexts) + max(sweep.section(name).tokens_after(sweep) for name in sweep.kinds)


def check_limit(config: Any, name: str, sweep: Sweep) -> None:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    needed, context = tokens_needed(sweep), max(sweep.contexts)
    if limit is not None and needed > limit:
        legal = limit - needed + context
        hint = (
            f"the largest legal context here is {legal}"
            if legal > 0
            else "score fewer tokens (quality.protocol.score) or run fewer speed.rounds"
        )
        raise QuantKVError(
            f"contexts: {context} and the {needed - context} tokens run after it make {needed}, "
            f"but {name} reads at most {limit}; {hint}"
        )
