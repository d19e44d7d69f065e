"""`inspect`: what a model's keys and values are like, and where formats err, by layer and head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantkv.arms.arm import format_name
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.data import Text, bos_id, load_text, tokenize
from quantkv.errors import QuantKVError
from quantkv.instruments.huggingface import check_length
from quantkv.instruments.windows import make_windows
from quantkv.measurements.inside.capture import LayerCall, capture
from quantkv.measurements.inside.channels import (
    ChannelStatistics,
    HeadStatistics,
    channel_statistics,
    head_statistics,
    magnitude_map,
)
from quantkv.measurements.inside.layer_errors import exact_output, held, layer_errors, packs
from quantkv.spec.specs import CacheSpec, parse_spec
from quantkv.spec.tensors import DEFAULT_SINKS

if TYPE_CHECKING:
    import pandas as pd

TENSORS = ("key", "value")


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was seen. `context` tokens were prefilled and `queries` attended to them.

    `errors`: a row per format, layer and KV head (columns of `layer_errors`, and packed tokens).
    `statistics`: a row per layer, tensor and head (columns of `HeadStatistics`). `channels`: a row per layer,
    tensor, head and channel (mean, rms, absmax). Statistics leave out the first tokens, which formats keep
    exact. `maps`: token × channel magnitudes `[rows, H · D]` by (layer, tensor).
    """

    context: int
    queries: int
    errors: pd.DataFrame
    statistics: pd.DataFrame
    channels: pd.DataFrame
    maps: dict[tuple[int, str], NDArray]


def inspect(
    model: Any,
    tok_or_ids: Any,
    formats: Iterable[str | CacheSpec] | Mapping[str, str | CacheSpec] = (),
    *,
    text: str | Text | dict[str, Any] = "python-docs",
    context: int = 1024,
    queries: int = 64,
    seed: int = 0,
) -> Inspection:
    """Prefill `context` tokens, let `queries` more attend to them, and look at every layer of that pass.

    The text comes from token ids `[T]`, whose last tokens are used, or from a tokenizer and `text`, of which
    `seed` picks a piece. One layer is held at a time. Without formats only statistics are made.
    """
    for name, value in (("context", context), ("queries", queries)):
        if value < 1:
            raise QuantKVError(f"{name} must be at least 1, got {value}")
    check_length(model, context + queries)
    ids = _ids(tok_or_ids, text, context, queries, seed)
    specs = named_specs(formats)
    _check_packed(specs, context)
    looker = _Looker(model, specs, context, queries)
    capture(model, ids, looker.look)
    return looker.inspection()


def named_specs(formats: Iterable[Any] | Mapping[str, Any]) -> dict[str, CacheSpec]:
    """Specs by the name they carry in tables."""
    if isinstance(formats, str | CacheSpec):
        raise QuantKVError("formats must be a list, such as ['int4-head', 'kivi-2']")
    named = formats.items() if isinstance(formats, Mapping) else [(format_name(f), f) for f in formats]
    return {label: parse_spec(given) for label, given in named}


def _check_packed(specs: Mapping[str, CacheSpec], context: int) -> None:
    for label, spec in specs.items():
        if not packs(spec, context):
            raise QuantKVError(
                f"{label} packs nothing at context {context}; use a longer context or a smaller window "
                "(recent, flush, sinks)"
            )


def _ids(tok_or_ids: Any, text: Any, context: int, queries: int, seed: int) -> Tensor:
    """`context + queries` token ids."""
    length = context + queries
    if isinstance(tok_or_ids, Tensor | list | tuple):
        ids = torch.as_tensor(tok_or_ids, dtype=torch.long).flatten()
        if len(ids) < length:
            raise QuantKVError(f"context and queries need {length} token ids, there are {len(ids)}")
        return ids[-length:]
    loaded = text if isinstance(text, Text) else load_text(text)
    ids, bos = tokenize(loaded, tok_or_ids), bos_id(tok_or_ids)
    plan = make_windows(ids, span=context, score=queries, windows=1, seed=seed, bos_id=bos)
    return plan.at(context)[0][:-1]


class _Looker:
    """Collects rows while a pass goes from layer to layer."""

    def __init__(self, model: Any, specs: Mapping[str, CacheSpec], context: int, queries: int) -> None:
        self.context, self.queries = context, queries
        self.caches = {label: QuantizedCache(model.config, spec) for label, spec in specs.items()}
        self.errors: list[dict[str, Any]] = []
        self.statistics: list[dict[str, Any]] = []
        self.channels: list[dict[str, Any]] = []
        self.maps: dict[tuple[int, str], NDArray] = {}

    def look(self, seen: LayerCall) -> None:
        for name, x in zip(TENSORS, (seen.key, seen.value), strict=True):
            self._statistics(seen.layer, name, x[0])
        exact = exact_output(seen, self.queries)
        for label, cache in self.caches.items():
            layer = cache.layers[seen.layer]
            if isinstance(layer, QuantizedLayer):
                self._errors(label, seen, layer, exact)

    def _statistics(self, layer: int, tensor: str, x: Tensor) -> None:
        self.maps[layer, tensor] = magnitude_map(x)
        later = x[:, min(DEFAULT_SINKS, x.shape[1] - 1) :]
        channels = channel_statistics(later)
        place = {"layer": layer, "tensor": tensor}
        self.statistics += _rows(place, head_statistics(later, channels))
        self.channels += _rows(place, channels)

    def _errors(self, label: str, seen: LayerCall, layer: QuantizedLayer, exact: Tensor) -> None:
        keys, values = held(layer, seen.key, seen.value, self.context)
        columns = layer_errors(seen, keys, values, exact)
        packed = {"packed_keys": keys.packed_tokens, "packed_values": values.packed_tokens}
        for head in range(keys.exact.shape[1]):
            place = {"format": label, "layer": seen.layer, "head": head}
            self.errors.append(place | {name: float(x[head]) for name, x in columns.items()} | packed)

    def inspection(self) -> Inspection:
        import pandas as pd

        errors, statistics, channels = map(pd.DataFrame, (self.errors, self.statistics, self.channels))
        return Inspection(self.context, self.queries, errors, statistics, channels, self.maps)


def _rows(place: dict[str, Any], statistics: HeadStatistics | ChannelStatistics) -> Iterator[dict[str, Any]]:
    """A row per head, or per head and channel."""
    columns = asdict(statistics)
    for at in np.ndindex(statistics.absmax.shape):
        numbers = {name: column[at].item() for name, column in columns.items()}
        yield place | dict(zip(("head", "channel"), at)) | numbers
