"""Quality token by token: the prompt is read into a cache and every token after it decoded through it.

`simulate` computes what one of our own formats would do, for all queries at once. A foreign cache has no
closed form, so it has to be lived through, call by call, as a deployment would. Formats of our own can be
measured this way too, which is how the two are known to agree.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.arms.arm import BASELINE, Result
from quantkv.decode_exact.schedule import BatchRows, Call, Schedule
from quantkv.decode_exact.simulate import protocol_calls
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments import huggingface as hf
from quantkv.instruments.divergence import compare
from quantkv.measurements.packed_reads import reads, total
from quantkv.measurements.quality.protocols import Protocol
from quantkv.measurements.quality.scoring import PreparedWindow, Scored
from quantkv.measurements.quality.section import Bits
from quantkv.measurements.running import effective
from quantkv.peers import worker
from quantkv.peers.peer import Peer
from quantkv.peers.remote import Remote
from quantkv.peers.versions import check_peer
from quantkv.spec.specs import CacheSpec

SAME_MODEL_KL = 1e-2
"""More than arithmetic can explain: the other interpreter has read the model's files differently."""
PLAIN: dict[str, Any] = {"kind": "dynamic"}


@dataclass(frozen=True, slots=True)
class WindowTold:
    """What a cache tells of a window: tokens that each layer keeps and bytes of plain floats, both after the
    prompt; (tokens read, bytes held) after each call that a scored token may follow."""

    kept: list[int]
    exact: int
    held: list[tuple[int, int]]


def decode_token_by_token(
    model: Any, cache: Any, ids: Tensor, *, calls: list[int], first: int, attn: str = "quantkv"
) -> Tensor:
    """Logits [len(ids) - 1 - first, V] of teacher-forced decoding through an empty cache of any kind.

    The prompt is read in `calls`, the rest of `ids` [T] token by token; positions before `first` give none.
    """
    with hf.attention(model, attn):
        all_calls = [*calls, *worker.steps(ids, calls)]
        return worker.run(model, cache, ids, all_calls, first=first)[0]


class TokenByTokenArm:
    """A cache that is no format of ours, or our format on what an eviction press left, decoded through."""

    def __init__(self, model: Any, spec: Peer | str, protocol: Protocol, context: int) -> None:
        self.model, self.spec, self.protocol, self.context = model, spec, protocol, context
        self.peer = spec if isinstance(spec, Peer) else None
        self.is_press = self.peer is not None and self.peer.is_press
        self.calls = prompt_calls(protocol, context, press=self.is_press)
        self.first = protocol.first_scored(context)
        self.told = WindowTold([], 0, [])
        self.cache: Any = None
        self.saturated: int | None = None
        self.notes: list[str] = []
        self.remote = self._opened() if self.peer else None

    def score(self, window: PreparedWindow) -> Scored:
        logits, self.told = self._run(window)
        self._check_eviction()
        logits_ref = window.logits_ref.to(logits.device)
        tokens = compare(logits_ref, logits, window.ids[self.first + 1 :])
        if self.cache is not None:
            self.saturated = (self.saturated or 0) + self.cache.saturated
        packed = None if self.cache is None else packed_share(self.cache, self.told.kept, len(tokens))
        return Scored(tokens, packed, torch.equal(logits, logits_ref))

    def figures(self, lengths: range) -> tuple[Bits, Result]:
        """Bits from the bytes the cache held on the last window, and the effective section of the row."""
        per_token = sum(heads * (d_key + d_value) for heads, d_key, d_value in hf.cache_shapes(self.model))
        held = {length: 8 * size / (per_token * length) for length, size in self.told.held}
        at = max(length for length in held if length <= max(self.context, min(held)))
        size, exact = dict(self.told.held)[at], self.told.exact
        at_16 = size - exact + exact * 2 / self.model.dtype.itemsize
        bits = Bits(
            bits_cache=held[at],
            bits_cache_16=8 * at_16 / (per_token * at),
            bits_cache_mean=statistics.mean(held[n] for n in held if n in lengths),
            cache_bytes=size,
        )
        return bits, self._effective(size)

    def close(self) -> None:
        if self.remote is not None:
            self.remote.close()

    def _opened(self) -> Remote | None:
        """The peer's process where it has an interpreter of its own."""
        assert self.peer is not None
        check_peer(self.peer, self.model.config)
        return Remote(self.peer, self.model, hf.stock_attention(self.model)) if self.peer.python else None

    def _run(self, window: PreparedWindow) -> tuple[Tensor, WindowTold]:
        if self.remote is not None and not self.notes:
            self._compare_models(self.remote, window)
        if self.peer is not None and self.peer.on_top is not None:
            return self._on_top(self.peer.on_top, window.ids)
        if self.remote is not None:
            tensors, numbers = self.remote.ask("decode", window.ids, self.calls, self.first)
            return tensors["logits"], WindowTold(**numbers)
        recipe = self.peer.recipe if self.peer else PLAIN
        with hf.attention(self.model, hf.stock_attention(self.model)):
            cache = worker.new_cache(recipe, self.model.config)
            logits, numbers = worker.decode(self.model, cache, recipe, window.ids, self.calls, self.first)
        return logits, WindowTold(**numbers)

    def _on_top(self, spec: CacheSpec, ids: Tensor) -> tuple[Tensor, WindowTold]:
        """The press prunes the exact prompt, our cache packs what is left and decodes on."""
        from quantkv.cache.quantized import QuantizedCache

        pruned, start = self._pruned(ids), sum(self.calls)
        kept = worker.kept_tokens(pruned)
        spec = self.protocol.overrule_spec(spec)
        self.cache = QuantizedCache.from_cache(pruned, self.model.config, spec)
        exact, before = self.cache.exact_nbytes, [(start, self.cache.nbytes)]
        with hf.attention(self.model, "quantkv"):
            calls = worker.steps(ids, self.calls)
            logits, held = worker.run(
                self.model, self.cache, ids, calls, start=start, first=self.first, size_of=lambda c: c.nbytes
            )
        return logits, WindowTold(kept, exact, before + held)

    def _pruned(self, ids: Tensor) -> DynamicCache:
        assert self.peer is not None
        cache, recipe = DynamicCache(), self.peer.recipe
        if self.remote is None:
            with hf.attention(self.model, hf.stock_attention(self.model)):
                return worker.prefill(self.model, cache, recipe, ids, self.calls)
        tensors, numbers = self.remote.ask("prefill", ids, self.calls, self.first)
        for index in range(len(numbers["kept"])):
            pair = (tensors[f"{name}.{index}"].to(self.model.device) for name in ("keys", "values"))
            cache.update(*pair, index)
        return cache

    def _compare_models(self, remote: Remote, window: PreparedWindow) -> None:
        """Raise where the other interpreter's model, without any cache format, is not ours."""
        tensors, _ = remote.ask("plain", window.ids, [], self.first)
        targets = window.ids[self.first + 1 :]
        kl = float(compare(window.logits_ref, tensors["logits"], targets).kl.mean())
        if not kl <= SAME_MODEL_KL:
            raise QuantKVError(
                f"the model in the other interpreter is another one: mean KL {kl:.2g} without any format"
            )
        self.notes.append(f"ran in another interpreter; without a format its model differs by KL {kl:.1e}")

    def _check_eviction(self) -> None:
        """Raise where a press removed nothing: hooks that never fired would look like a perfect method."""
        read = sum(self.calls)
        if self.is_press and max(self.told.kept) >= read:
            raise QuantKVError(f"{self.spec} dropped none of {read} tokens: the press did not run")

    def _effective(self, size: int) -> Result:
        section = effective(self.model, self.spec, self.cache, saturated=self.saturated)
        quantizes = self.peer is not None and not self.is_press
        section["simulated"] |= quantizes and self.told.exact >= size
        untold = self.peer is not None and self.cache is None
        notes = ["packed reads are not told by this cache"] if untold else []
        if self.is_press:
            kept, read = self.told.kept, sum(self.calls)
            notes.append(f"layers keep {min(kept)} to {max(kept)} of {read} tokens")
        return section | {"notes": [*section["notes"], *notes, *self.notes]}


def prompt_calls(protocol: Protocol, context: int, *, press: bool) -> list[int]:
    """Sizes of the calls that read the prompt.

    Raises UnsupportedError for `final`, which no cache can do, and for several calls before an eviction.
    """
    if protocol.prefill == "final":
        raise UnsupportedError(
            "prefill final is what simulators do; a cache is read as exact, stream or chunk:N"
        )
    given = protocol_calls(protocol.prefill, protocol.prompt(context))
    calls = given["calls"] if "calls" in given else [given["prefill"]]
    if press and (len(calls) != 1 or protocol.first_scored(context) < sum(calls)):
        raise UnsupportedError("an eviction press needs its prompt in one call: prefill exact")
    return list(calls)


def packed_share(cache: Any, kept: list[int], steps: int) -> float:
    """The share of attended (query, key) pairs that our cache held packed while `steps` tokens were decoded
    after `kept` ones in each layer."""
    calls = [
        Call(Schedule(torch.tensor([tokens])), BatchRows.unpadded(1, tokens + steps), 0, tokens + steps)
        for tokens in kept
    ]
    pairs, packed = total(map(reads, cache.layers, calls))
    return packed / pairs


def needs_token_by_token(spec: Any) -> TypeGuard[Peer | str]:
    """Whether an arm is measured here rather than by `simulate`."""
    return isinstance(spec, Peer) or spec == BASELINE
