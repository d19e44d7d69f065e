"""Which tokens a cache takes for left padding: what a 2-D mask says, or positions that can mean nothing else.

Everything else is plain tokens: packed sequences, branches of a tree, positions that begin elsewhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import IMPLEMENTATIONS, left_padded, logits_in_calls, plain_cache, token_ids, with_attention
from support.architectures import tiny_model
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, EncoderDecoderCache

from quantkv import QuantizedCache, QuantKVError, cache_argument, simulate
from quantkv.cache.padding import counted_padding

EXACT = "exact+r8+f4+s2+k8+sliding"
LOSSY = "k.int8-channel@g16+v.int8-head+r8+f16+s2+k8+sliding"
FAMILIES = ("llama", "gpt2", "opt", "falcon", "gpt_neox", "gemma3_text")
UNUSUAL = {
    "restarting": torch.arange(20).repeat(2),
    "jumping": torch.cat([torch.arange(30), torch.arange(50, 60)]),
    "from elsewhere": torch.arange(7, 47),
    "constant": torch.zeros(40, dtype=torch.long),
    "constant, then from elsewhere": torch.cat([torch.ones(10, dtype=torch.long), torch.arange(5, 35)]),
    "padded on the right": torch.cat([torch.arange(25), torch.zeros(15, dtype=torch.long)]),
}

pytestmark = pytest.mark.usefixtures("no_gradients")


def call(model: Any, ids: Tensor, cache: Any, **options: Any) -> Tensor:
    return model(input_ids=ids, **{cache_argument(model): cache}, **options).logits


# --- position ids ---
@given(st.integers(0, 30), st.integers(2, 20), st.sampled_from([-1, 0, 1]))
def test_a_constant_and_then_a_count_is_padding(pads: int, real: int, constant: int) -> None:
    row = torch.cat([torch.full((pads,), constant), torch.arange(real)])
    full = torch.arange(pads + real)
    assert counted_padding(torch.stack([row, full]), 2, len(row)) == [pads, 0]
    assert counted_padding(row[None], 3, len(row)) == [pads] * 3
    for wrong in (row + 2, row[:-1].repeat(2), torch.cat([row, row[-1:] + 2])):
        assert counted_padding(wrong[None], 1, len(wrong)) is None
        assert counted_padding(torch.stack([wrong, torch.arange(len(wrong))]), 2, len(wrong)) is None
    assert counted_padding(row[None, None], 1, len(row)) is counted_padding(None, 1, len(row)) is None


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_other_positions_are_plain_tokens(family: str, implementation: str, kind: str) -> None:
    model, ids = with_attention(tiny_model(family), implementation), token_ids(1, 50, 100)
    cache, expected = QuantizedCache(model.config, EXACT), plain_cache(model)
    for part, positions in ((ids[:, :40], UNUSUAL[kind][None]), (ids[:, 40:], torch.arange(40, 50)[None])):
        logits = call(model, part, cache, position_ids=positions)
        assert (logits - call(model, part, expected, position_ids=positions)).abs().max() <= 1e-4
    assert set(cache.describe()["padding_from"].dropna()) == {"none"}
    assert all(store.pads == [0] for layer in cache.quantized_layers for store in layer.stores)


def test_positions_that_constant_then_count_are_padding_where_no_mask_says_so(tiny_llama: Any) -> None:
    cache, mask = QuantizedCache(tiny_llama.config, EXACT), left_padded([9, 0], 30)
    seen = (torch.ones(30, 30).tril().bool() & mask[:, None, None].bool()) | torch.eye(30).bool()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    call(tiny_llama, token_ids(2, 30), cache, attention_mask=seen, position_ids=positions)
    assert cache.layers[1].key_store.pads == [9, 0]
    assert cache.describe()["padding_from"].tolist() == ["position ids"] * 2


# --- 4-D masks ---
def tree(past: int) -> tuple[Tensor, Tensor]:
    """Seven tokens of three branches after `past` tokens: who sees whom `[7, past + 7]`, and positions."""
    seen, depth = torch.zeros(7, past + 7, dtype=torch.bool), [0] * 7
    for node, parent in enumerate([-1, 0, 0, 1, 1, 2, 5]):
        seen[node] = seen[parent] if parent >= 0 else torch.arange(past + 7) < past
        seen[node, past + node] = True
        depth[node] = depth[parent] + 1 if parent >= 0 else past
    return seen, torch.tensor(depth)


def as_mask(seen: Tensor, implementation: str) -> Tensor:
    """A 4-D mask: bool, or additive for `eager`, which knows no other."""
    additive = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    return (additive if implementation == "eager" else seen)[None, None]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "falcon", "gpt_neox"])
def test_branches_of_a_tree_are_plain_tokens(family: str, implementation: str) -> None:
    """Verified, taken back in part, and gone on from, as tree decoding does; then a second tree."""
    model, ids = with_attention(tiny_model(family), implementation), token_ids(1, 60, 100)
    outputs = []
    for cache in (QuantizedCache(model.config, EXACT), plain_cache(model)):
        parts = [call(model, ids[:, :30], cache)]
        for past in (30, 36):
            seen, positions = tree(past)
            options = {"attention_mask": as_mask(seen, implementation), "position_ids": positions[None]}
            parts.append(call(model, ids[:, past : past + 7], cache, **options))
            cache.crop(-3)
            parts.append(call(model, ids[:, past + 4 : past + 6], cache))
        outputs.append(torch.cat(parts, 1))
    assert (outputs[0] - outputs[1]).abs().max() <= 1e-4


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_sequences_behind_a_block_diagonal_mask_equal_each_alone(
    tiny_llama: Any, implementation: str
) -> None:
    model, ids = with_attention(tiny_llama, implementation), token_ids(1, 50)
    cache, sizes = QuantizedCache(model.config, EXACT), (17, 33)
    seen = torch.block_diag(*(torch.ones(n, n).tril() for n in sizes)).bool()
    positions = torch.cat([torch.arange(n) for n in sizes])[None]
    parts = []
    for start, stop in ((0, 30), (30, 50)):  # cut inside the second sequence
        mask = as_mask(seen[start:stop, :stop], implementation)
        options = {"attention_mask": mask, "position_ids": positions[:, start:stop]}
        parts.append(call(model, ids[:, start:stop], cache, **options))
    alone = [call(model, part, None) for part in ids.split(sizes, 1)]
    assert (torch.cat(parts, 1) - torch.cat(alone, 1)).abs().max() <= 1e-4


@pytest.mark.parametrize("pads", [0, 9])
def test_a_decode_exact_pass_behind_a_4d_mask_equals_stepping(tiny_llama: Any, pads: int) -> None:
    """Behind a mask that hides tokens at random; positions show the padding, or come in pairs."""
    model, ids, spec = tiny_llama.double(), token_ids(1, 70), "int4-head+r8+f8+s2+k8"
    seen = torch.rand(70, 70, generator=torch.Generator().manual_seed(2)) < 0.6
    seen = (seen & torch.ones(70, 70).tril().bool() & (torch.arange(70) >= pads)) | torch.eye(70).bool()
    positions = (torch.arange(70) - pads).clamp_min(0) if pads else torch.arange(70) // 2
    mask, positions = seen[None, None], positions[None]
    with simulate(model, spec, prefill=30):
        whole = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    cache, steps = QuantizedCache(with_attention(model, "quantkv").config, spec), []
    for start, stop in [(0, 30), *((i, i + 1) for i in range(30, 70))]:
        options = {"attention_mask": mask[:, :, start:stop, :stop], "position_ids": positions[:, start:stop]}
        steps.append(call(model, ids[:, start:stop], cache, **options))
    assert cache.layers[0].key_store.pads == [pads] and cache.layers[0].key_store.packed(0) > 0
    assert (torch.cat(steps, 1) - whole)[:, pads:].abs().max() <= 1e-9


def test_padding_that_a_mask_told_is_not_kept_for_a_later_4d_mask(tiny_llama: Any) -> None:
    model, ids = with_attention(tiny_llama, "quantkv"), token_ids(1, 40)
    cache = QuantizedCache(model.config, EXACT)
    call(model, ids, cache, attention_mask=left_padded([9], 40))
    cache.reset()
    call(model, ids, cache, attention_mask=torch.ones(40, 40).tril().bool()[None, None])
    assert cache.layers[0].key_store.pads == [0]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(1, 1, 2, 42, dtype=torch.long), "bool"),
        (torch.ones(1, 1, 2, 60).bool(), r"\[1, 1, 2, 60\]"),
        (torch.ones(1, 1, 2, 1).bool(), r"\[1, 1, 2, 1\]"),
        (torch.ones(1, 1, 7, 42).bool(), r"\[1, 1, 7, 42\]"),
    ],
    ids=["whole numbers", "too wide", "too narrow", "of other queries"],
)
def test_masks_that_would_be_misread_are_refused(tiny_llama: Any, mask: Tensor, message: str) -> None:
    model, cache = with_attention(tiny_llama, "quantkv"), QuantizedCache(tiny_llama.config, EXACT)
    call(model, token_ids(1, 40), cache)
    with pytest.raises(QuantKVError, match=message):
        call(model, token_ids(1, 2), cache, attention_mask=mask)


# --- prompts in chunks ---
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom", "falcon", "gpt_neox", "gemma3_text"])
def test_padding_longer_than_a_chunk_is_found_in_every_implementation(
    family: str, implementation: str
) -> None:
    model, ids = with_attention(tiny_model(family).double(), implementation), token_ids(2, 70, 100)
    argument, pads = cache_argument(model), [43, 0]
    cache = QuantizedCache(model.config, LOSSY)
    options = {"prefill_chunk_size": 8, "max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    model.generate(ids, attention_mask=left_padded(pads, 70), **{argument: cache}, **options)
    assert all(store.pads == pads for layer in cache.quantized_layers for store in layer.stores)
    assert set(cache.describe()["padding_from"]) == {"attention mask"}


@pytest.mark.parametrize("implementation", ["sdpa", "quantkv"])  # eager gives padding NaN in float64
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma3_text"])
@pytest.mark.parametrize("chunk", [1, 16])
def test_a_padded_row_in_chunks_equals_the_row_alone(family: str, implementation: str, chunk: int) -> None:
    """A chunk begins where the padding ends, so that both see the same calls."""
    model, ids = with_attention(tiny_model(family).double(), implementation), token_ids(2, 96, 100)
    mask, sizes = left_padded([48, 0], 96), [chunk] * (96 // chunk)
    batch, alone = QuantizedCache(model.config, LOSSY), QuantizedCache(model.config, LOSSY)
    logits = logits_in_calls(model, ids, batch, sizes, mask)
    expected = logits_in_calls(model, ids[:1, 48:], alone, sizes[len(sizes) // 2 :])
    assert (logits[0, 48:] - expected[0]).abs().max() <= 1e-9
    assert batch.layers[0].key_store.pages.used[0] == alone.layers[0].key_store.pages.used[0] > 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_on_the_right_of_a_chunk_is_plain_tokens(tiny_llama: Any, implementation: str) -> None:
    model, ids = with_attention(tiny_llama, implementation), token_ids(2, 50)
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[1, 12:20] = mask[0, 30:40] = 0
    sizes, cache = [20, 20, *[1] * 10], QuantizedCache(model.config, EXACT)
    logits = logits_in_calls(model, ids, cache, sizes, mask)
    expected = logits_in_calls(model, ids, plain_cache(model), sizes, mask)
    assert (logits - expected)[mask.bool()].abs().max() <= 1e-4
    assert cache.layers[0].key_store.pads == [0, 0]


def test_the_padding_of_another_model_is_not_taken_for_the_caches(tiny_llama: Any) -> None:
    """A mask that a plain cache asked for, between two calls of a quantized one that is all padding yet."""
    model, other = (with_attention(m, "sdpa") for m in (tiny_llama, tiny_model("qwen2")))
    cache, mask = QuantizedCache(model.config, EXACT), left_padded([12], 20)
    call(model, token_ids(1, 8), cache, attention_mask=mask[:, :8])
    call(other, token_ids(1, 40, 100), plain_cache(other), attention_mask=left_padded([30], 40))
    seen = torch.ones(12, 20).tril(8).bool()[None, None]
    call(model, token_ids(1, 12), cache, attention_mask=seen)
    assert cache.layers[0].key_store.pads == [8]


def test_the_mask_of_an_encoder_is_not_taken_for_the_decoders() -> None:
    config = BartConfig(vocab_size=100, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32,
        decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, init_std=0.15)  # fmt: skip
    model = with_attention(BartForConditionalGeneration(config).eval(), "sdpa")
    own, cross = (QuantizedCache(model.config, "exact+r8+f4+s2+k8") for _ in range(2))
    options = {"attention_mask": left_padded([5, 0], 12), "decoder_input_ids": token_ids(2, 9, 100)}
    model(token_ids(2, 12, 100), **options, **{cache_argument(model): EncoderDecoderCache(own, cross)})
    assert own.layers[0].key_store.pads == [0, 0]
