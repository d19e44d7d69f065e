"""A checkpoint that is not the whole model is refused by the names of what is wrong."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import torch
from gguf_files import VOCAB_SIZE, converts, write_llama_gguf
from safetensors.torch import load_file, save_file

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.models import gguf_checkpoint, load_model, random_model
from quantkv.models.completeness import check_loaded

Weights = dict[str, torch.Tensor]
LAST, FIRST = "model.layers.1.", "model.layers.0."


def _folder(
    tmp_path: Path, change: Callable[[Weights], Weights], name: str = "random-llama", **options: Any
) -> Path:
    """A checkpoint whose weights are changed after it was saved."""
    random_model(name, **options).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return tmp_path


def _without(*parts: str) -> Callable[[Weights], Weights]:
    return lambda held: {key: value for key, value in held.items() if not any(part in key for part in parts)}


def _with(key: str, *shape: int) -> Callable[[Weights], Weights]:
    return lambda held: held | {key: torch.ones(shape)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: {f"_orig_mod.{k}": v for k, v in held.items()}, "21 missing .*begin with '_orig_mod.'"),
        (lambda held: {f"module.{k}": v for k, v in held.items()}, "21 missing .*begin with 'module.'"),
        (_without(LAST), r"9 missing \(model\.layers\.1\.input_layernorm\.weight, .*…\)"),
        (_without("lm_head"), r"1 missing \(lm_head\.weight\)"),
        (_without("embed_tokens"), r"1 missing \(model\.embed_tokens\.weight\)"),
        (
            lambda held: held | {f"{FIRST}mlp.up_proj.weight": torch.ones(64, 128)},
            r"1 of another shape \(model\.layers\.0\.mlp\.up_proj\.weight 64×128 for 256×128\)",
        ),
        (_with(f"{FIRST}self_attn.q_proj.lora_A.weight", 4, 128), "1 not the model's .*merge_and_unload"),
        (_with(f"{FIRST}self_attn.q_proj.bias", 128), r"1 not the model's \(.*q_proj\.bias\)"),
        (_with(f"{FIRST}self_attn.q_norm.weight", 32), r"1 not the model's \(.*q_norm\.weight\)"),
        (_with("lm_head.bias", 256), r"1 not the model's \(lm_head\.bias\)"),
    ],
    ids=lambda value: None if callable(value) else value[:24],
)
def test_weights_that_are_missing_or_have_no_place_are_named(
    tmp_path: Path, change: Any, message: str
) -> None:
    folder = _folder(tmp_path, change)
    with pytest.raises(QuantKVError, match=f"not the whole of a LlamaForCausalLM: weights are {message}"):
        load_model(folder)


@pytest.mark.parametrize("name", ["random-llama", "random-gpt2", "random-gemma3", "random-qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_whole_checkpoints_load_without_a_word(tmp_path: Path, name: str, tied: bool) -> None:
    saved = random_model(name, tie_word_embeddings=tied)
    saved.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded, _ = load_model(tmp_path)
    for key, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)


@pytest.mark.parametrize(
    "change",
    [
        _without("lm_head"),  # tied: it is the embedding
        lambda held: {
            f"model.{key}": value for key, value in held.items()
        },  # transformers takes this one off
        _with(f"{FIRST}self_attn.rotary_emb.inv_freq", 16),  # a buffer of older releases
    ],
)
def test_weights_that_the_model_does_without_are_no_news(tmp_path: Path, change: Any) -> None:
    folder = _folder(tmp_path, change, tie_word_embeddings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded, _ = load_model(folder)
    expected = random_model("random-llama", tie_word_embeddings=True)
    assert torch.equal(loaded.model.layers[1].mlp.up_proj.weight, expected.model.layers[1].mlp.up_proj.weight)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


@pytest.mark.parametrize(
    "key",
    [f"{LAST}mlp.up_proj.weight".replace("1", "2"), "mtp.0.proj.weight", "visual.blocks.0.proj.weight"]
    + ["score.weight", f"{FIRST}self_attn.k_scale"],
)
def test_parts_that_the_model_has_no_place_for_are_said_once(tmp_path: Path, key: str) -> None:
    folder = _folder(tmp_path, _with(key, 4))
    with pytest.warns(UserWarning, match=f"1 weights are left out, .*: {key}"):
        load_model(folder)


def test_weights_that_are_not_finite_are_said(tmp_path: Path) -> None:
    def spoil(held: Weights) -> Weights:
        held[f"{LAST}mlp.up_proj.weight"][3, 5] = float("nan")
        held[f"{LAST}mlp.down_proj.weight"][0, 0] = float("-inf")
        return held

    with pytest.warns(
        UserWarning, match=rf"2 weights hold NaN or infinities: {LAST}mlp.up_proj.*, {LAST}mlp.down_proj"
    ):
        load_model(_folder(tmp_path, spoil))


def test_file_of_a_checkpoint_that_is_missing_or_cut_short_is_named(tmp_path: Path) -> None:
    random_model("random-llama").save_pretrained(tmp_path, max_shard_size="200KB")
    second = sorted(tmp_path.glob("*.safetensors"))[1]
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(QuantKVError, match="cannot load the model folder"):
        load_model(tmp_path)
    second.unlink()
    with pytest.raises(QuantKVError, match=second.name):
        load_model(tmp_path)


def test_index_that_forgets_a_file_is_noticed(tmp_path: Path) -> None:
    random_model("random-llama").save_pretrained(tmp_path, max_shard_size="200KB")
    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    place = index["weight_map"]["lm_head.weight"]
    index["weight_map"] = {key: value for key, value in index["weight_map"].items() if value != place}
    file.write_text(json.dumps(index))
    with pytest.raises(QuantKVError, match=r"missing .*lm_head\.weight"):
        load_model(tmp_path)


@pytest.mark.parametrize("whole", [True, False])
def test_adapters_are_refused(tmp_path: Path, whole: bool) -> None:
    if whole:
        random_model("random-llama").save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(QuantKVError, match=r"is an adapter .*merge_and_unload"):
        load_model(tmp_path)
    with pytest.raises(QuantKVError, match="someone/something is an adapter"):
        check_loaded("someone/something", SimpleNamespace(_hf_peft_config_loaded=True), {})


def test_warnings_of_transformers_are_passed_on(tmp_path: Path) -> None:
    random_model("random-llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "linear", "factor": 2.0, "unheard_of": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="transformers warns: .*unheard_of"):
        load_model(tmp_path)


# GGUF files


def _gguf(folder: Path, *, lacking: str = " ", name: str = "tiny.gguf", **fields: Any) -> Path:
    model = random_model("random-llama", vocab_size=VOCAB_SIZE)
    held = {key: value for key, value in model.state_dict().items() if lacking not in key}
    write_llama_gguf(SimpleNamespace(config=model.config, state_dict=lambda: held), folder / name, **fields)
    return folder / name


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (LAST, r"9 missing \(model\.layers\.1\.input_layernorm\.weight, "),
        ("embed_tokens", r"1 missing \(model\.embed_tokens\.weight\)"),
        ("layers.0.self_attn.v_proj", r"1 missing \(model\.layers\.0\.self_attn\.v_proj\.weight\)"),
    ],
)
def test_gguf_that_lacks_tensors_is_refused_and_not_kept(
    tmp_path: Path, model_cache: Path, lacking: str, message: str
) -> None:
    path = _gguf(tmp_path, lacking=lacking)
    with pytest.raises(
        QuantKVError, match=rf"tiny\.gguf is not the whole of a LlamaForCausalLM: .*{message}"
    ):
        load_model(path)
    assert list((model_cache / "converted").iterdir()) == []


@converts
def test_gguf_without_a_head_has_the_embedding_for_it(tmp_path: Path, model_cache: Path) -> None:
    model, _ = load_model(_gguf(tmp_path, lacking="lm_head"))
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def _set(writer: gguf.GGUFWriter) -> None:
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 3)


def _scale(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)


def _frequencies(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", torch.linspace(1, 8, 16).numpy())


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        (_set, QuantKVError, r"is one of 3 files of a model; join them with llama-gguf-split --merge"),
        (_scale, UnsupportedError, r"scales its positions \(llama\.rope\.scaling\.type\)"),
        (_frequencies, UnsupportedError, r"scales its positions \(rope_freqs\.weight\)"),
    ],
)
def test_gguf_of_which_transformers_would_leave_out_a_part_is_refused(
    tmp_path: Path, model_cache: Path, more: Any, error: type[Exception], message: str
) -> None:
    path = _gguf(tmp_path, more=more)
    with pytest.raises(error, match=message):
        load_model(path)


@converts
def test_gguf_tensors_that_transformers_has_no_name_for_are_counted(
    tmp_path: Path, model_cache: Path
) -> None:
    def bias(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q.bias", torch.ones(128).numpy())

    path = _gguf(tmp_path, more=bias)
    whole = sum(
        parameter.numel() for parameter in random_model("random-llama", vocab_size=VOCAB_SIZE).parameters()
    )
    with pytest.warns(
        UserWarning, match=f"holds {whole + 128:,} weights, transformers takes {whole:,} of them"
    ):
        load_model(path)


@converts
def test_damaged_copy_of_a_gguf_says_where_it_is(tmp_path: Path, model_cache: Path) -> None:
    path = _gguf(tmp_path)
    load_model(path)
    (folder,) = (model_cache / "converted").iterdir()
    file = folder / "model.safetensors"
    save_file(_without(LAST)(load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(
        QuantKVError, match=rf"converted copy of .*tiny\.gguf is damaged \({folder} .*9 missing"
    ):
        load_model(path)
    file.unlink()
    with pytest.raises(QuantKVError, match="delete that folder to have it made again"):
        load_model(path)
    assert gguf_checkpoint.kept_conversion(path) == folder
