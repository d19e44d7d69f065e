"""Writes a tiny Llama as a GGUF file, the way llama.cpp's converter lays it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from packaging.version import Version

converts = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6.2"), reason="this transformers breaks GGUF tokenizers"
)

BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
VOCAB_SIZE = 259
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_llama_gguf(
    model: Any,
    path: Path,
    file_type: gguf.LlamaFileType | None = gguf.LlamaFileType.ALL_F32,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> None:
    """``more`` adds what other converters write beside."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for name, parameter in model.state_dict().items():
        writer.add_tensor(_gguf_name(name), _rope_layout(name, parameter.numpy(), config))
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Byte-level BPE: every byte the token of its own value, ``th`` token 256, ``the`` token 257."""
    tokens = [*_byte_alphabet(), "th", "the", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 258 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(258)


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the rest count up from 256."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{BLOCK[rest]}.weight"


def _rope_layout(name: str, weight: np.ndarray, config: Any) -> np.ndarray:
    """llama.cpp rotates neighbouring channels, transformers the two halves of a head."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((n for key, n in heads.items() if key in name), None)
    if count is None:
        return weight
    rows, columns = weight.shape
    halves = weight.reshape(count, 2, rows // count // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
