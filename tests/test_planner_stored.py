"""Weights of quantized checkpoints: bytes computed by hand from what each method stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from typer.testing import CliRunner

from quantkv.commands.cli import app
from quantkv.models import random_model
from quantkv.planner import Plan, plan
from quantkv.planner.probe import probe

# Linear modules of random-llama: 2 layers, 128 × 128 and 64 × 128 (twice each), 256 × 128 (twice), 128 × 256
NUMBERS, ROWS, COLUMNS, MATRICES = 294912, 2048, 2048, 14
GROUPS = {128: 2304, 64: 4608, 32: 9216, 16: 18432}
SQUARES = 20  # of 128 × 128, begun ones whole
LEFT = 2 * 256 * 128 + 5 * 128  # embedding, head and norms
HALF = NUMBERS // 2


def _compressed(format: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
            "ignore": ["lm_head"]}  # fmt: skip


def _torchao(name: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": name}


KNOWN: dict[str, tuple[dict[str, Any], int]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, HALF + GROUPS[128] * 20 // 8),
    "awq, old names": ({"quant_method": "awq", "w_bit": 4, "group_size": 64}, HALF + GROUPS[64] * 20 // 8),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128},
             HALF + GROUPS[128] * 20 // 8 + 4 * COLUMNS),
    "gptq 3": ({"quant_method": "gptq", "bits": 3, "group_size": 32},
               NUMBERS * 3 // 8 + GROUPS[32] * 19 // 8 + 4 * COLUMNS),
    "gptq by row": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, NUMBERS + 3 * ROWS + 4 * COLUMNS),
    "auto-round": ({"quant_method": "auto-round", "bits": 2, "group_size": 32},
                   NUMBERS // 4 + GROUPS[32] * 18 // 8),
    "bnb 8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, NUMBERS + 4 * ROWS),
    "bnb 4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, HALF + 4 * GROUPS[64]),
    "bnb 4 twice": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        HALF + GROUPS[64] + 4 * GROUPS[64] // 256,
    ),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, NUMBERS + 4 * SQUARES),
    "fp8 per tensor": ({"quant_method": "fp8", "weight_block_size": None}, NUMBERS + 4 * MATRICES),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, NUMBERS + 4 * ROWS),
    "compressed int4": (_compressed(num_bits=4, group_size=32, strategy="group", symmetric=True),
                        HALF + 2 * GROUPS[32]),
    "compressed with zeros": (_compressed(num_bits=4, group_size=32, strategy="group", symmetric=False),
                              HALF + 2 * GROUPS[32] + GROUPS[32] // 2),
    "compressed int8": (_compressed("int-quantized", num_bits=8, strategy="channel", symmetric=True),
                        NUMBERS + 2 * ROWS),
    "compressed fp8": (_compressed("float-quantized", num_bits=8, strategy="tensor", symmetric=True),
                       NUMBERS + 2 * MATRICES),
    "compressed fp8 blocks": (
        _compressed("float-quantized", num_bits=8, strategy="block", block_structure=[128, 128]),
        NUMBERS + 2 * SQUARES,
    ),
    "nvfp4": (_compressed("nvfp4-pack-quantized", num_bits=4, group_size=16, strategy="tensor_group"),
              HALF + GROUPS[16]),
    "torchao 4": (_torchao({"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}}),
                  HALF + 4 * GROUPS[64]),
    "torchao 8": (_torchao("int8_weight_only"), NUMBERS + 4 * ROWS),
    "torchao 8 on 4": (
        _torchao({"_type": "Int8DynamicActivationInt4WeightConfig", "_data": {"group_size": 32}}),
        HALF + 4 * GROUPS[32],
    ),
    "hqq": ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            HALF + 4 * GROUPS[64]),
    "quanto 8": ({"quant_method": "quanto", "weights": "int8"}, NUMBERS + 2 * ROWS),
    "quanto 4": ({"quant_method": "quanto", "weights": "int4"}, HALF + 4 * GROUPS[128]),
    "eetq": ({"quant_method": "eetq", "weights": "int8"}, NUMBERS + 2 * ROWS),
    "bitnet": ({"quant_method": "bitnet"}, NUMBERS // 4 + 2 * MATRICES),
}  # fmt: skip


def _plan(settings: dict[str, Any], name: str = "random-llama", **options: Any) -> tuple[Plan, int]:
    """A plan, and the bytes of buffers, which are no part of a checkpoint."""
    config = random_model(name).config
    if "tied" in options:
        config.tie_word_embeddings = options.pop("tied")
    config.dtype, config.quantization_config = torch.bfloat16, settings
    shape = probe(config, torch.bfloat16)
    return plan(config, ["int4-head"], memory="1GB", **options), shape.unpacked_nbytes - 2 * shape.parameters


@pytest.mark.parametrize("name", KNOWN)
def test_weights_take_what_the_method_stores(name: str) -> None:
    settings, packed = KNOWN[name]
    found, buffers = _plan(settings)
    assert found.weights_bytes == packed + 2 * LEFT + buffers
    assert found.cache_room == 10**9 - found.weights_bytes
    assert f"{8 * found.weights_bytes / (NUMBERS + LEFT):.2f} bits per parameter" in found.weights_dtype
    assert "counted as stored" in found.weights_note


@pytest.mark.parametrize(
    ("settings", "packed", "left"),
    [
        ({"modules_to_not_convert": ["layers.0"]}, HALF // 2 + GROUPS[128] * 20 // 16, LEFT + NUMBERS // 2),
        ({"modules_to_not_convert": ["mlp"]}, 49152 + 768 * 20 // 8, LEFT + 2 * 3 * 256 * 128),
        ({"modules_to_not_convert": [r"model\.layers\.\d+\.mlp\..*"]}, 49152 + 768 * 20 // 8,
         LEFT + 2 * 3 * 256 * 128),
        ({"lm_head": True, "modules_to_not_convert": ["none"]},
         HALF + 256 * 64 + (GROUPS[128] + 256) * 20 // 8, LEFT - 256 * 128),
    ],
)  # fmt: skip
def test_modules_left_alone_stay_in_the_models_dtype(settings: Any, packed: int, left: int) -> None:
    found, buffers = _plan({"quant_method": "awq", "bits": 4, "group_size": 128} | settings)
    assert found.weights_bytes == packed + 2 * left + buffers


@pytest.mark.parametrize("skip", [None, ["lm_head"], ["nothing"]])
def test_a_head_that_is_the_embedding_is_never_quantized(skip: Any) -> None:
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": skip}
    found, buffers = _plan(settings, tied=True)
    assert found.weights_bytes == NUMBERS + 4 * ROWS + 2 * (LEFT - 256 * 128) + buffers


def test_layers_of_gpt2_lie_the_other_way_round() -> None:
    found, buffers = _plan({"quant_method": "bitsandbytes", "load_in_8bit": True}, "random-gpt2")
    rows = 2 * (3 * 128 + 128 + 512 + 128)
    packed = 2 * 12 * 128 * 128
    assert found.weights_bytes == packed + 4 * rows + 2 * (found.parameters - packed) + buffers


def test_mxfp4_takes_the_bytes_of_the_published_checkpoint() -> None:
    """gpt-oss-20b: its index states a total size of 13 761 264 768 bytes."""
    config = AutoConfig.for_model("gpt_oss", num_hidden_layers=24, num_local_experts=32, dtype=torch.bfloat16)
    config.quantization_config = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
        ],
    }
    shape = probe(config, torch.bfloat16)
    assert shape.parameters == 20_914_757_184
    assert shape.weights_nbytes == 13_761_264_768 + shape.unpacked_nbytes - 2 * shape.parameters


def test_fused_experts_are_quantized_where_the_method_does_so() -> None:
    """Two layers of four experts, each 2·64 × 128 and 128 × 64, in blocks of 64 × 64."""
    sizes = {"hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 4, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts_per_tok": 2}
    config = AutoConfig.for_model("qwen3_moe", vocab_size=256, dtype=torch.bfloat16, **sizes, **heads)
    unpacked = probe(config, torch.bfloat16).weights_nbytes
    attention, experts = 2 * (2 * 128 * 128 + 2 * 64 * 128), 2 * 4 * 3 * 64 * 128
    kept = {"modules_to_not_convert": ["lm_head", "mlp.gate"]}
    config.quantization_config = {"quant_method": "fp8", "weight_block_size": [64, 64]} | kept
    scales = 4 * (attention + experts) // 64**2
    assert probe(config, torch.bfloat16).weights_nbytes == unpacked - attention - experts + scales
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    rows = 2 * (2 * 128 + 2 * 64)  # of attention: the router is no linear module
    assert probe(config, torch.bfloat16).weights_nbytes == unpacked - attention + 4 * rows


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "aqlm", "num_codebooks": 1},
        {"quant_method": "something-new", "bits": 4},
        {"quant_method": "gptq"},
        _torchao("autoquant"),
        {"quant_method": "compressed-tensors", "config_groups": {
            "a": {"weights": {"num_bits": 4, "strategy": "channel"}},
            "b": {"weights": {"num_bits": 8, "strategy": "channel"}}}},
    ],
)  # fmt: skip
def test_what_is_not_known_is_counted_unpacked_and_said(settings: dict[str, Any]) -> None:
    found, buffers = _plan(settings)
    assert found.weights_bytes == 2 * (NUMBERS + LEFT) + buffers
    assert found.weights_dtype == "bfloat16"
    assert "of whose bits nothing is known here" in found.weights_note


def test_dtype_or_bits_that_are_given_win_over_what_is_stored() -> None:
    awq = KNOWN["awq"][0]
    found, buffers = _plan(awq, weights_dtype="bfloat16")
    assert (found.weights_bytes, found.weights_note) == (2 * (NUMBERS + LEFT) + buffers, "")
    assert _plan(awq, weights_dtype=4)[0].weights_bytes == (NUMBERS + LEFT) // 2
    assert _plan(awq | {"dequantize": True})[0].weights_bytes == 2 * (NUMBERS + LEFT) + buffers


def test_the_command_says_how_weights_are_counted(tmp_path: Path) -> None:
    config = random_model("random-llama").config
    config.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text()) | {"dtype": "bfloat16"}
    for settings, words in (
        (KNOWN["awq"][0], "counted as stored (4-bit awq); where transformers unpacks them they take"),
        ({"quant_method": "aqlm"}, "stored as aqlm, of whose bits nothing is known here"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization_config": settings}))
        result = CliRunner().invoke(app, ["plan", str(tmp_path), "-f", "int4-head", "--memory", "1GB"])
        assert result.exit_code == 0, result.output
        assert words in " ".join(result.output.split())
