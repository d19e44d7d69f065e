"""Errors inside a layer, on tensors whose rounding is known, and against attention written out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, LlamaConfig

from quantkv import QuantizedCache
from quantkv.engines import AttentionOptions
from quantkv.measurements.inside.capture import LayerCall
from quantkv.measurements.inside.layer_errors import Held, exact_output, held, layer_errors, relative_rms


def one_layer(spec: str, head_dim: int = 16):
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, num_hidden_layers=1, vocab_size=8
    )
    return QuantizedCache(config, spec).layers[0]


def stepped(tokens: int, off: float) -> torch.Tensor:
    """`[1, 1, tokens, 16]` with the values 0 … 15: exact in 4 bits (step 1, zero 0) but for one that is `off`
    away."""
    x = torch.arange(16.0).repeat(tokens, 1)
    x[:, 7] += off
    return x[None, None]


def test_the_error_of_a_known_rounding():
    """Step 1, zero 0: 7.25 is stored as 7, everything else is exact."""
    x = stepped(40, 0.25)
    keys, values = held(one_layer("int4-head+r0+f1+s0"), x, stepped(40, 0.0), prefill=39)
    size = math.sqrt(sum(v * v for v in range(16)) + 7.25**2 - 7**2)
    pair = [relative_rms(h.exact[:, :, h.packed], h.shown[:, :, h.packed]) for h in (keys, values)]
    assert pair[0].tolist() == pytest.approx([0.25 / size]) and pair[1].tolist() == [0]


def test_only_packed_tokens_are_read_decoded():
    """4 sinks, and b(100) = 4 + 16 · floor((100 − 4 − 8) / 16) = 84."""
    layer = one_layer("int4-head+r8+f16+s4")
    x = torch.randn(1, 1, 110, 16)
    keys, _ = held(layer, x, x, prefill=100)
    assert (keys.packed.start, keys.packed.stop, keys.packed_tokens) == (4, 84, 80)
    wrong = (keys.shown != keys.exact)[0, 0].any(-1)
    assert wrong[4:84].all() and not wrong[:4].any() and not wrong[84:].any()
    assert layer.get_seq_length() == 0


def test_held_is_what_the_cache_decodes():
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, num_hidden_layers=1, vocab_size=8
    )
    plain, x = DynamicCache(), torch.randn(2, 1, 2, 200, 32)
    plain.update(x[0], x[1], 0)
    stored = QuantizedCache.from_cache(plain, config, "kivi-2").to_dynamic().layers[0]
    keys, values = held(
        QuantizedCache(config, "kivi-2").layers[0], torch.cat([x[0]] * 2, 2), torch.cat([x[1]] * 2, 2), 200
    )
    assert torch.equal(keys.shown[:, :, :200], stored.keys)
    assert torch.equal(values.shown[:, :, :200], stored.values)


def random_layer(heads: int = 2, ratio: int = 3, tokens: int = 50, queries: int = 7):
    generator = torch.Generator().manual_seed(1)
    query, key, value, dk, dv = (
        torch.randn(1, h, tokens, 8, generator=generator, dtype=torch.float64)
        for h in (heads * ratio, heads, heads, heads, heads)
    )
    packed = slice(2, 30)
    gap = torch.zeros(tokens, 1, dtype=torch.float64)
    gap[packed] = 0.3
    keys, values = Held(key, key + gap * dk, packed), Held(value, value + gap * dv, packed)
    return LayerCall(0, query, key, value, AttentionOptions(causal=True)), keys, values, queries


def attention_by_hand(query, key, value, queries):
    """Plain causal attention of the last queries: `[1, Hq, queries, D]`."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value)[:, :, -queries:]


@pytest.mark.parametrize("queries", [1, 7, 33])
def test_output_errors_are_those_of_attention_written_out(queries):
    seen, keys, values, _ = random_layer(tokens=64)
    errors = layer_errors(seen, keys, values, exact_output(seen, queries))
    exact = attention_by_hand(seen.query, keys.exact, values.exact, queries)
    pairs = {
        "output_error": (keys.shown, values.shown),
        "output_error_keys": (keys.shown, values.exact),
        "output_error_values": (keys.exact, values.shown),
    }
    for name, pair in pairs.items():
        other = attention_by_hand(seen.query, *pair, queries)
        for head, rows in enumerate((slice(0, 3), slice(3, 6))):
            expected = (other - exact)[:, rows].norm() / exact[:, rows].norm()
            assert errors[name][head].item() == pytest.approx(expected.item(), rel=1e-9)
    assert errors["output_rms"].tolist() == pytest.approx(
        [exact[:, rows].square().mean().sqrt().item() for rows in (slice(0, 3), slice(3, 6))]
    )


@pytest.mark.parametrize("scaling, factor", [(None, 8**-0.5), (0.5, 0.5)])
def test_the_logit_error_is_that_of_the_logits(scaling, factor):
    seen, keys, values, queries = random_layer()
    seen = replace(seen, options=AttentionOptions(causal=True, scaling=scaling))
    gap = (keys.shown - keys.exact)[:, :, keys.packed]
    for head, rows in enumerate((slice(0, 3), slice(3, 6))):
        logits = seen.query[0, rows, -queries:] @ gap[0, head].T * factor
        found = layer_errors(seen, keys, values, exact_output(seen, queries))["logit_error"][head]
        assert found.item() == pytest.approx(logits.square().mean().sqrt().item(), rel=1e-9)


def test_exact_keys_and_values_have_no_error():
    seen, keys, values, queries = random_layer()
    exact = (Held(keys.exact, keys.exact, keys.packed), Held(values.exact, values.exact, values.packed))
    errors = layer_errors(seen, *exact, exact_output(seen, queries))
    assert all(errors[name].abs().max() == 0 for name in errors if name != "output_rms")


def test_a_mask_hides_what_it_hides():
    """A mask that shows only the packed tokens' neighbours leaves no output error."""
    seen, keys, values, queries = random_layer()
    mask = torch.ones(1, 1, 50, 50, dtype=torch.bool).tril()
    mask[..., keys.packed] = False
    seen = replace(seen, options=AttentionOptions(mask))
    errors = layer_errors(seen, keys, values, exact_output(seen, queries))
    assert errors["output_error"].abs().max() == 0 and errors["key_error"].min() > 0
