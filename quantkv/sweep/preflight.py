"""What can be known of a model before its weights are loaded: its configuration, and so its limits."""

from __future__ import annotations

from typing import Any

from quantkv.errors import QuantKVError
from quantkv.measurements.kind import kind
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep


def model_config(entry: ModelEntry) -> Any | None:
    """The configuration alone; None where only loading the model will tell what is wrong with it. A name that
    is no model at all raises QuantKVError, before anything is measured."""
    from quantkv.models.configs import config_alone

    return config_alone(entry.location, revision=entry.revision)


def tokens_needed(sweep: Sweep) -> int:
    """The longest sequence any cell runs: the largest context and what is scored or decoded after it."""
    return max(sweep.contexts) + max(kind(name).tokens_after(sweep) for name in sweep.kinds)


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
