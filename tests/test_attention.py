"""Attention from packed keys and values: the textbook example, the reference engine, the handles."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from default_specs import A_FEW
from stores import CPU, at_place, feed, new_store
from torch import Tensor

from quantkv import QuantKVError, parse_spec
from quantkv.engines import AttentionOptions, KVHandle, PlainReadable, attend
from quantkv.engines.choosing import REFERENCE
from quantkv.policy import Window
from quantkv.store import TensorStore

# --- the textbook example: row vectors, k = x · W_k ---
TOKENS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
W_Q = torch.eye(2, dtype=torch.float64)
W_K = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
W_V = 2 * torch.eye(2, dtype=torch.float64)
ANSWER = torch.tensor([1.8199, 1.5105], dtype=torch.float64)


class CachedLayer:
    """One head of two channels without scaling; keys and values are packed as soon as they are cached."""

    def __init__(self) -> None:
        tensor, sides = parse_spec("exact").key, ("key", "value")
        methods = [at_place(tensor, side, heads=1, dim=2, dtype=torch.float64) for side in sides]
        self.stores = [TensorStore(method, Window(0, 0, 1, 0), 1, CPU, REFERENCE) for method in methods]

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs `[T, 2]` of the new tokens `x`, attending to everything before them."""
        views = [s.append((x @ w)[None, None]) for s, w in zip(self.stores, (W_K, W_V))]
        return attend((x @ W_Q)[None, None], *views, AttentionOptions(causal=True, scaling=1.0))[0, 0]


def recomputed(x: Tensor) -> Tensor:
    """Causal attention over all of `x` without a cache, row by row from the definition."""
    out = []
    for i in range(len(x)):
        weights = torch.softmax((x[i] @ W_Q) @ (x[: i + 1] @ W_K).T, -1)
        out.append(weights @ (x[: i + 1] @ W_V))
    return torch.stack(out)


def test_textbook_scores_by_hand() -> None:
    """q3 = (1, 1) scores 2, 1, 3 against k = (1, 1), (0, 1), (1, 2); values are (2, 0), (0, 2), (2, 2)."""
    weights = [math.exp(s) / (math.exp(2) + math.exp(1) + math.exp(3)) for s in (2, 1, 3)]
    by_hand = [2 * weights[0] + 2 * weights[2], 2 * weights[1] + 2 * weights[2]]
    assert ANSWER.tolist() == pytest.approx(by_hand, abs=5e-5)


@pytest.mark.parametrize("sizes", [[3], [1, 1, 1], [2, 1], [1, 2]])
def test_textbook_with_and_without_a_cache(sizes: list[int]) -> None:
    layer = CachedLayer()
    outputs = torch.cat([layer(part) for part in TOKENS.split(sizes)])
    assert layer.stores[0].pages.used == [3]
    assert torch.allclose(outputs, recomputed(TOKENS), atol=1e-12)
    assert torch.allclose(outputs[2], ANSWER, atol=5e-5)
    assert torch.allclose(recomputed(TOKENS)[2], ANSWER, atol=5e-5)


def test_two_layers_need_every_cached_token_of_the_first() -> None:
    """The cache gives what recomputing both layers gives; layer one on the newest token alone does not."""
    first, second = CachedLayer(), CachedLayer()
    cached = torch.cat([second(first(token[None])) for token in TOKENS])
    full = recomputed(recomputed(TOKENS))
    assert torch.allclose(cached, full, atol=1e-12)
    newest_only = recomputed(torch.cat([recomputed(TOKENS[i : i + 1]) for i in range(3)]))
    assert (newest_only[2] - full[2]).abs().max() > 0.1


# --- the reference engine against the definition ---
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """One head and query at a time in float64; `allowed` is an additive mask `[B, Hq, Q, T]`."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    ratio = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h] @ k[b, h // ratio].T * scaling
            scores = softcap * torch.tanh(scores / softcap) if softcap else scores
            scores = scores + allowed[b, h].double()
            top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
            weights = (scores - top).exp()
            total = weights.sum(-1, keepdim=True)
            total = total + (sinks[h].double() - top).exp() if sinks is not None else total
            out[b, h] = weights / total.clamp_min(1e-300) @ v[b, h // ratio]
    return out


def causal_mask(length: int, stop: int) -> Tensor:
    return torch.full((length, stop), float("-inf")).triu(stop - length + 1)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("length", [1, 5, 30])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_engine_equals_the_definition(
    heads: tuple[int, int], length: int, softcap: float | None, sinks: bool
) -> None:
    q = torch.randn(2, heads[0], length, 16)
    k, v = torch.randn(2, heads[1], 40, 16), torch.randn(2, heads[1], 40, 24)
    logits = torch.randn(heads[0]) if sinks else None
    options = AttentionOptions(causal=True, softcap=softcap, sink_logits=logits)
    out = attend(q, PlainReadable(k), PlainReadable(v), options)
    allowed = causal_mask(length, 40).expand(2, heads[0], -1, -1)
    assert out.shape == (2, heads[0], length, 24) and out.dtype == q.dtype
    assert torch.allclose(out.double(), naive(q, k, v, allowed, 0.25, softcap, logits), atol=1e-5)


@pytest.mark.parametrize("heads_in_mask", [1, 4])
def test_masks_boolean_and_additive(heads_in_mask: int) -> None:
    q, k, v = torch.randn(2, 4, 7, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16)
    visible = torch.rand(2, heads_in_mask, 7, 40) < 0.5
    visible[0, :, 3] = False  # a query that may see nothing gives zeros
    additive = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    expected = naive(q, k, v, additive.expand(2, 4, 7, 40), 0.3, None, None)
    assert not expected[0, :, 3].any()
    for mask in (visible, additive):
        out = attend(q, PlainReadable(k), PlainReadable(v), AttentionOptions(mask, scaling=0.3))
        assert torch.allclose(out.double(), expected, atol=1e-5)


@pytest.mark.parametrize("queries_in_mask", [1, 150])
@pytest.mark.parametrize("causal", [True, False])
def test_a_long_call_keeps_its_mask_and_causality(queries_in_mask: int, causal: bool) -> None:
    """More queries than are taken at a time."""
    q, k, v = torch.randn(1, 2, 150, 8), torch.randn(1, 1, 160, 8), torch.randn(1, 1, 160, 8)
    visible = torch.rand(1, 1, queries_in_mask, 160) < 0.7
    additive = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    allowed = (additive + causal_mask(150, 160) if causal else additive).expand(1, 2, 150, 160)
    expected = naive(q, k, v, allowed, 0.5, None, None)
    for mask in (visible, additive):
        out = attend(q, PlainReadable(k), PlainReadable(v), AttentionOptions(mask, causal, 0.5))
        assert torch.allclose(out.double(), expected, atol=1e-5)


@pytest.mark.parametrize("text", [*A_FEW, "int8-head+r0+f32+s0+k0"])
def test_engine_on_pages_equals_attention_over_what_they_decode_to(text: str) -> None:
    """Long enough to be read in several spans, with rows of different padding."""
    spec = parse_spec(text)
    stores = [new_store(spec, which, rows=2, pads=[0, 9]) for which in ("key", "value")]
    for store in stores:
        feed(store, torch.randn(2, 2, 4600, 32), [4400, *[25] * 8])
    views = [store.view() for store in stores]
    assert len(views[0].edges()) > 3
    q = torch.randn(2, 4, 2, 32)
    mask = causal_mask(2, 4600).repeat(2, 1, 1, 1)
    mask[1, :, :, :9] = float("-inf")
    out = attend(q, *views, AttentionOptions(mask))
    decoded = [view.read(0, 4600) for view in views]
    expected = naive(q, *decoded, mask.expand(2, 4, -1, -1), 32**-0.5, None, None)
    assert torch.allclose(out.double(), expected, atol=1e-5)
    plain = attend(q, *(PlainReadable(x) for x in decoded), options=AttentionOptions(mask))
    assert torch.allclose(plain, out, atol=1e-6)


def test_float64_queries_are_computed_in_float64() -> None:
    q, k, v = (torch.randn(1, 2, n, 16, dtype=torch.float64) for n in (3, 50, 50))
    out = attend(q, PlainReadable(k), PlainReadable(v), AttentionOptions(causal=True))
    expected = naive(q, k, v, causal_mask(3, 50).expand(1, 2, 3, 50), 0.25, None, None)
    assert out.dtype == torch.float64 and (out - expected).abs().max() < 1e-13


# --- handles ---
def handle_and_decoded(text: str = "int4-head+r8+f16+s2+k8") -> tuple[KVHandle, Tensor]:
    store = new_store(parse_spec(text), rows=2)
    feed(store, torch.randn(2, 2, 90, 32), [50, *[1] * 40])
    return KVHandle(store.view()), store.view().read(0, 90)


def test_handle_tells_its_shape_without_decoding() -> None:
    handle, decoded = handle_and_decoded()
    assert isinstance(handle, Tensor)
    assert handle.shape == decoded.shape and handle.size(2) == 90 and handle.dim() == handle.ndim == 4
    assert (handle.dtype, handle.device, handle.numel()) == (torch.float32, CPU, decoded.numel())
    assert not handle.requires_grad and not handle.is_cuda and "KVHandle" in repr(handle)
    assert handle.kv.tally.materialized == 0


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[:, :, 3:70],
    "cat": lambda x: torch.cat([x, x], -2),
    "matmul": lambda x: torch.ones(2, 2, 5, 32) @ x.transpose(2, 3),
    "repeat": lambda x: x[:, :, None].expand(2, 2, 3, 90, 32).reshape(2, 6, 90, 32),
    "arithmetic": lambda x: x + 1,
    "cast": lambda x: x.to(torch.float64),
    "contiguous": lambda x: x.contiguous(),
    "reduction": lambda x: x.sum(-1),
    "select rows": lambda x: x[torch.tensor([1, 0, 0])],
    "clone": lambda x: x.clone(),
    "sdpa": lambda x: torch.nn.functional.scaled_dot_product_attention(torch.ones(2, 2, 5, 32), x, x),
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_any_operation_on_a_handle_works_on_its_decoded_values(name: str) -> None:
    handle, decoded = handle_and_decoded()
    assert torch.equal(OPERATIONS[name](handle), OPERATIONS[name](decoded))
    assert handle.kv.tally.materialized >= 1


def test_handle_of_an_earlier_state_raises() -> None:
    store = new_store(parse_spec("int4-head+r8+f16+s2+k8"))
    old = KVHandle(store.append(torch.randn(1, 2, 5, 32)))
    assert old.sum().isfinite()
    store.append(torch.randn(1, 2, 1, 32))
    with pytest.raises(QuantKVError, match="next update"):
        old.sum()
    assert old.shape == (1, 2, 5, 32)
