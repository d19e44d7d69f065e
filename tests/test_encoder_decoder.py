"""Encoder-decoder models: self-attention and cross-attention caches packed, the latter once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import IMPLEMENTATIONS
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    EncoderDecoderCache,
    T5Config,
    T5ForConditionalGeneration,
)

from quantkv import QuantizedCache


def tiny_t5() -> Any:
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=128, d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
            initializer_factor=2.0, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def tiny_bart() -> Any:
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=128,
            init_std=0.15, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
        )
    )  # fmt: skip
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    return model


MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 0.8, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [tiny_t5, tiny_bart])
def test_lossless_caches_give_the_tokens_of_dynamic_caches(make: Any, mode: str) -> None:
    model, rows = make().eval(), 1 if mode == "prompt lookup" else 2
    ids = torch.randint(3, 128, (rows, 50))
    mask = torch.ones_like(ids)
    mask[-1, 40:] = 0
    options = {"attention_mask": mask, "max_new_tokens": 30, "do_sample": False, **MODES[mode]}
    torch.manual_seed(1)
    expected = model.generate(ids, **options)
    for implementation in IMPLEMENTATIONS:
        own, cross = (QuantizedCache(model.config, "exact+r8+f8+k8") for _ in range(2))
        model.set_attn_implementation(implementation)
        torch.manual_seed(1)
        tokens = model.generate(ids, **options, past_key_values=EncoderDecoderCache(own, cross))
        assert torch.equal(tokens, expected), implementation
        assert cross.describe()["packed_keys"].tolist() == [40, 40]  # floor((50 − 0 − 8) / 8) chunks of 8
        assert own.get_seq_length() >= 30


def test_lossy_cross_attention_is_close() -> None:
    model = tiny_t5().eval()
    ids, decoder = torch.randint(3, 128, (1, 90)), torch.randint(3, 128, (1, 12))
    encoded = model.get_encoder()(ids)
    logits = {}
    for spec in ("exact", "int8-head+r8", "int2-head+r8"):
        cache = EncoderDecoderCache(*(QuantizedCache(model.config, spec) for _ in range(2)))
        with torch.no_grad():
            steps = [
                model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache).logits
                for token in decoder.split(1, 1)
            ]
        logits[spec] = torch.cat(steps, 1)
    fine, coarse = (
        (logits[s] - logits["exact"])[:, 1:].abs().max() for s in ("int8-head+r8", "int2-head+r8")
    )
    assert 0 < fine < coarse / 4
