"""The registered attention: known as soon as quantkv and transformers are loaded, and never silent about an
argument that it leaves out."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import token_ids, with_attention
from support.architectures import tiny_model
from transformers import AttentionMaskInterface

from quantkv import QuantizedCache, UnsupportedError, cache_argument, simulate
from quantkv.cache.hooks import quantkv_attention, register

EXACT = "exact+r8+f4+s2+k8"
SWITCHED_AND_LOADED = """
import tempfile
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1)
ids, mask = torch.arange(6).view(2, 3), torch.tensor([[0, 1, 1], [1, 1, 1]])
model = AutoModelForCausalLM.from_config(config)
expected = model(ids, attention_mask=mask).logits[mask == 1]
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="quantkv")
model.set_attn_implementation("quantkv")
for m in (model, loaded):
    assert m.config._attn_implementation == "quantkv"
    assert torch.allclose(m(ids, attention_mask=mask).logits[mask == 1], expected, atol=1e-5)
from quantkv.cache.hooks import quantkv_attention, quantkv_mask
from transformers import AttentionInterface, AttentionMaskInterface
assert AttentionInterface()["quantkv"] is quantkv_attention  # nothing stands between any more
assert AttentionMaskInterface()["quantkv"] is quantkv_mask
"""
WHOLE = """
import inspect, sys
import transformers.modeling_utils as module
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("quantkv")]
assert "PreTrainedModel" in inspect.getsource(module) and module.__spec__.name == module.__name__
"""
ORDERS = {
    "quantkv first": f"import importlib, quantkv; importlib.reload(quantkv)\n{WHOLE}",
    "transformers first": "import transformers.modeling_utils, quantkv",
}


def in_a_new_process(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- known by name ---
@pytest.mark.long("imports torch and transformers anew")
@pytest.mark.parametrize("order", ORDERS)
def test_importing_quantkv_is_enough(order: str) -> None:
    in_a_new_process(f"{ORDERS[order]}\n{SWITCHED_AND_LOADED}")


def test_importing_quantkv_loads_neither_torch_nor_transformers() -> None:
    in_a_new_process(
        "import sys, quantkv\n"
        "assert not {'torch', 'transformers', 'numpy', 'quantkv.cache.hooks'} & sys.modules.keys()\n"
        "import json, email.parser, importlib.util\n"  # other imports go on as they did
        "assert importlib.util.find_spec('no_such_module') is None\n"
        "assert importlib.util.find_spec('transformers').loader is not None"
    )


def test_masks_of_other_implementations_are_wrapped_once() -> None:
    register()
    before = dict(AttentionMaskInterface())
    register()
    assert dict(AttentionMaskInterface()) == before and {"sdpa", "eager", "quantkv"} <= before.keys()


# --- what is left out is refused ---
FAMILIES = ("llama", "gpt2", "opt", "gpt_neox", "gemma3_text", "qwen3_next", "gpt_oss", "stablelm")


@pytest.mark.parametrize("where", ["argument", "config"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_weights_are_refused_by_name(family: str, cached: bool, where: str) -> None:
    model, ids = with_attention(tiny_model(family), "eager"), token_ids(1, 20, 100)
    cache = {cache_argument(model): QuantizedCache(model.config, EXACT)} if cached else {}
    if where == "config":
        model.config.output_attentions = True
    options = {"output_attentions": True} if where == "argument" else {}
    assert any(weights is not None for weights in model(ids, **options).attentions)  # what eager gives
    model.set_attn_implementation("quantkv")
    with pytest.raises(UnsupportedError, match=r"output_attentions=True.*eager"):
        model(ids, **cache, **options)


def test_attention_weights_in_generate_are_refused(tiny_llama: Any) -> None:
    model = with_attention(tiny_llama, "quantkv")
    with pytest.raises(UnsupportedError, match="output_attentions"):
        model.generate(
            token_ids(1, 9), max_new_tokens=2, output_attentions=True, return_dict_in_generate=True
        )


def test_eager_gives_the_weights_of_a_quantized_cache(tiny_llama: Any) -> None:
    """What the message says: the weights of a lossless cache are those of a plain pass."""
    model, ids = with_attention(tiny_llama, "eager"), token_ids(1, 30)
    cache = {cache_argument(model): QuantizedCache(model.config, EXACT)}
    with torch.no_grad():
        model(ids[:, :29], **cache)
        weights = model(ids[:, 29:], output_attentions=True, **cache).attentions
        expected = model(ids, output_attentions=True).attentions
    for layer, plain in zip(weights, expected, strict=True):
        assert (layer - plain[:, :, 29:]).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["head_mask", "layer_head_mask", "cu_seq_lens_q", "indices", "sinks"])
def test_arguments_that_change_the_result_are_refused(name: str) -> None:
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(UnsupportedError, match=f"{name}'.*eager"):
        quantkv_attention(SimpleNamespace(is_causal=True), q, q, q, None, **{name: torch.ones(2)})


def test_a_position_bias_beside_a_softcap_is_refused() -> None:
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(UnsupportedError, match="position_bias"):
        bias = torch.zeros(1, 2, 3, 3)
        quantkv_attention(SimpleNamespace(is_causal=True), q, q, q, None, softcap=3.0, position_bias=bias)


def test_dropout_is_refused_where_the_engine_reads_pages(tiny_llama: Any) -> None:
    for layer in tiny_llama.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model, cache = with_attention(tiny_llama.train(), "quantkv"), QuantizedCache(tiny_llama.config, EXACT)
    options = {cache_argument(model): cache}
    with torch.no_grad():
        model(token_ids(1, 20), **options)
        with pytest.raises(UnsupportedError, match=r"dropout.*model\.eval"):
            model(token_ids(1, 1), **options)
        model.eval()(token_ids(1, 1), **options)


def test_masks_of_whole_numbers_are_refused_in_a_decode_exact_pass(tiny_llama: Any) -> None:
    mask = torch.ones(30, 30, dtype=torch.long).tril()[None, None]
    with simulate(tiny_llama, EXACT, prefill=10), pytest.raises(ValueError, match="bool"):
        tiny_llama(token_ids(1, 30), attention_mask=mask)
