"""The decode-exact pass: one forward that equals token-by-token decoding through the packed cache.

A plain forward pass never reads a cache, so a perplexity from it says nothing about quantization. But which
tokens are packed at which step is a function of lengths alone: query `i`, in a call that began with `n0`
cached tokens, reads decoded values for `S ≤ j < b(n0)` and exact ones elsewhere, separately for keys and
values. Inside `simulate(...)` the model's attention does just that for all queries at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quantkv.cache.hooks import SIMULATION, fused_attention
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.quantized import QuantizedCache
from quantkv.codecs import compute_dtype, saturated
from quantkv.decode_exact.one_pass import one_pass
from quantkv.decode_exact.rope import hooked, reaches
from quantkv.decode_exact.schedule import Lengths, Prefill, Schedule, chunk_size, read_lengths
from quantkv.decode_exact.simulation import Simulation
from quantkv.decode_exact.split_attention import RoundTrip, Saturation, Storage
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments.huggingface import evaluating
from quantkv.policy import Window
from quantkv.spec.specs import CacheSpec, Half
from quantkv.spec.tensors import DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_RESERVE, DEFAULT_SINKS
from quantkv.store.row_state import RowState
from quantkv.store.tensor import ENCODE_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FakeQuant = Callable[[Tensor], Tensor]
"""A plain function `x -> x̂` on `[B, H, T, D]` keys or values: accepted as a format, labelled simulated."""
PLAIN_WINDOW = Window(DEFAULT_SINKS, DEFAULT_RECENT, DEFAULT_FLUSH, DEFAULT_RESERVE)
"""Which tokens stay exact under a plain function."""


@contextmanager
def simulate(
    model: PreTrainedModel,
    spec: str | CacheSpec | FakeQuant,
    *,
    prefill: Prefill = 0,
    calls: Lengths | None = None,
    prefill_reads: str = "exact",
    lengths: Lengths | None = None,
    count_from: int | Lengths | None = None,
    window: Window = PLAIN_WINDOW,
) -> Iterator[Simulation]:
    """Inside, `model(ids)` returns what decoding token by token through the packed cache would have returned.

    `prefill=P`: the first P tokens came in one call, the rest one by one. P counts positions, leading
    padding included; a sequence or 1-D tensor gives each row its own, and `"all_but_last"` leaves only the
    last real token of each row to decoding (the last 1 of a 2-D attention mask, the last position without
    one). `calls=[…]` instead gives the sizes of several prompt calls. `prefill_reads="final"`: the first
    call attends to what the store ends up holding. `lengths` says where each row ends, for batches that are
    padded on the right and come without a mask; it decides what is last and what is counted. Reads are
    counted of the queries from position `count_from` on, one for all rows or one per row; by default those
    after the prefill.

    The model may be called with the whole sequence, or with a tail and a plain `DynamicCache` that holds
    exact keys and values of what came before. `spec` may also be a plain function `x -> x̂` on `[B, H, T,
    D]`, which leaves the tokens of `window` exact. Raises QuantKVError for arguments that fit no row, at the
    latest when the model is called.
    """
    schedule = replace(Schedule.read(prefill, calls, prefill_reads), count_from=_first_counted(count_from))
    ends = None if lengths is None else read_lengths("lengths", lengths, 0)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedError("simulate() runs models that only decode, not encoder-decoder models")
    count = Saturation()
    cache = QuantizedCache(model.config, "exact" if callable(spec) else spec)
    layers = _layers(cache, spec if callable(spec) else None, window, count)
    spans = {i: cache.layers[i].sliding_window for i, slides in enumerate(cache.is_sliding) if slides}
    simulation = Simulation(layers, schedule, callable(spec), one_pass(model), spans, ends, count)

    def called(_: Any, __: Any, given: dict[str, Any]) -> None:
        simulation.begin_forward(given.get("position_ids"))

    # a mask function alone would not tell of a call: models that are given a ready 4-D mask call none
    announced = hooked({model, model.base_model}, called)
    token = SIMULATION.set(simulation)
    try:
        with evaluating(model), fused_attention(model), announced, reaches(model, simulation.reach):
            yield simulation
    finally:
        SIMULATION.reset(token)


def _first_counted(given: int | Lengths | None) -> Tensor | None:
    if given is None:
        return None
    return read_lengths("count_from", [given] if isinstance(given, int) else given, 0)


def protocol_calls(prefill: str, context: int) -> dict[str, Any]:
    """Arguments of `simulate` for a prompt of `context` and a prefill: exact, final, stream or chunk:N."""
    if prefill == "exact":
        return {"prefill": context}
    if prefill == "final":
        return {"prefill": context, "prefill_reads": "final"}
    if prefill == "stream":
        return {"calls": [1] * context}
    size = chunk_size(str(prefill))
    if not size:
        raise QuantKVError(f"prefill {prefill!r}; legal: exact, final, stream, chunk:N")
    whole, rest = divmod(context, size)
    return {"calls": [size] * whole + ([rest] if rest else [])}


def _layers(
    cache: QuantizedCache, function: FakeQuant | None, window: Window, count: Saturation
) -> dict[int, tuple[Storage, Storage]]:
    """How keys and values of each packed layer are stored: by its spec, or by a function behind `window`."""

    def storage(half: Half, layer: QuantizedLayer) -> Storage:
        if function is not None:
            return Storage(window, _checked(function))
        return Storage(half.window, _round_trip(half, layer, count), half.tensor.positions)

    packed = {i: layer for i, layer in enumerate(cache.layers) if isinstance(layer, QuantizedLayer)}
    return {
        i: (storage(layer.spec.halves[0], layer), storage(layer.spec.halves[1], layer))
        for i, layer in packed.items()
    }


def _checked(function: FakeQuant) -> RoundTrip:
    """The function on a copy of its own, so that one that works in place leaves exact tokens as they are.

    Raises QuantKVError for another shape: torch would spread it over the tokens without a word.
    """

    def round_trip(x: Tensor, packed: int, first: Sequence[int]) -> Tensor:
        x = x[:, :, :packed]
        out = function(x.clone())
        if not isinstance(out, Tensor) or out.shape != x.shape:
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise QuantKVError(f"a function as a format must give a tensor of {list(x.shape)}, not {got}")
        return out

    return round_trip


def _round_trip(half: Half, layer: QuantizedLayer, count: Saturation) -> RoundTrip:
    """Encode and decode whole flush chunks, a span of them at a time."""
    span = -(-ENCODE_TOKENS // half.tensor.flush) * half.tensor.flush

    def round_trip(x: Tensor, packed: int, first: Sequence[int]) -> Tensor:
        stored, rows = layer.stored(half, x), range(len(x))
        state = RowState(stored, len(x), x.device)
        state.first = list(first)
        if stored.fit_tokens:
            state.fit(rows, x[:, :, : stored.fit_tokens])
        parts = []
        for start in range(0, packed, span):
            part = x[:, :, start : min(start + span, packed)]
            tokens = state.tokens(rows, [start] * len(x))
            fields = stored.encode(part, tokens)
            count.numbers += saturated(part, fields)
            parts.append(stored.decode(fields, tokens, compute_dtype(x.dtype)))
        return torch.cat(parts, 2)

    return round_trip
