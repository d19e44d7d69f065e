from __future__ import annotations

from logging import handlers
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import logging

from quantkv.errors import QuantKVError
from quantkv.models import (
    RANDOM_MODELS,
    byte_tokenizer,
    identity,
    load_model,
    model_identity,
    model_names,
    packaged,
    random_model,
)
from quantkv.models.identity import describe_precision
from quantkv.quiet import quiet
from quantkv.rows.files import read_rows
from quantkv.sweep.config import validate
from quantkv.sweep.grid import expand
from quantkv.sweep.local import LocalSession

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def _config(**fields: Any) -> SimpleNamespace:
    config = SimpleNamespace(**fields)
    config.get_text_config = lambda: config
    return config


# random models


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_random_models_generate_in_evaluation_mode(name: str) -> None:
    model, tokenizer = load_model(name)
    prompt = tokenizer("Hello", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 10)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.config.num_hidden_layers == 2


def test_seed_decides_the_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (random_model("random-llama", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_dtype_rounds_the_same_weights() -> None:
    single = random_model("random-qwen2", seed=3).state_dict()
    for dtype in (torch.float64, torch.bfloat16):
        for name, tensor in random_model("random-qwen2", seed=3, dtype=dtype).state_dict().items():
            assert tensor.dtype == dtype
            assert torch.equal(tensor, single[name].to(dtype))


def test_weights_are_wide_enough_for_attention_to_choose(tiny_llama: Any) -> None:
    weights = torch.cat([layer.self_attn.k_proj.weight.flatten() for layer in tiny_llama.model.layers])
    assert weights.std().item() == pytest.approx(0.15, rel=0.05)


def test_families_have_the_feature_they_are_there_for(
    tiny_qwen2: Any, tiny_mistral: Any, tiny_gemma3: Any
) -> None:
    for layer in tiny_qwen2.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            assert (projection.bias != 0).all()
    assert tiny_mistral.config.sliding_window is None
    assert set(tiny_gemma3.config.layer_types) == {"sliding_attention", "full_attention"}
    assert (tiny_qwen2.config.num_attention_heads, tiny_qwen2.config.num_key_value_heads) == (4, 2)


def test_options_in_the_name_and_as_keywords_agree() -> None:
    by_name, _ = load_model("random-llama:num_hidden_layers=3,head_dim=64")
    by_keyword = random_model("random-llama", num_hidden_layers=3, head_dim=64)
    assert len(by_name.model.layers) == 3
    assert by_name.model.layers[0].self_attn.k_proj.weight.shape == (2 * 64, 128)
    assert torch.equal(by_name.lm_head.weight, by_keyword.lm_head.weight)


def test_layer_types_repeat_over_more_layers() -> None:
    kinds = random_model("random-gemma3", num_hidden_layers=3).config.layer_types
    assert kinds == ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("random-lama", "random-llama"),
        ("random-llama:head_dimm=3", "did you mean head_dim"),
        ("random-llama:head_dim", "has no value"),
    ],
)
def test_wrong_random_names_say_what_is_legal(name: str, hint: str) -> None:
    with pytest.raises(QuantKVError, match=hint):
        load_model(name)


# byte tokenizer


@pytest.mark.parametrize("text", ["Hello", " two  spaces\n\ttab", "é 漢字 🙂", ""])
def test_byte_tokenizer_ids_are_utf8_bytes(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_token_id is None


# identity


def test_fingerprint_follows_weights_and_config() -> None:
    model, same = random_model("random-llama"), random_model("random-llama")
    reference = model_identity(model)["fingerprint"]
    assert model_identity(same)["fingerprint"] == reference
    same.model.layers[1].self_attn.v_proj.weight.data *= 1.01
    assert model_identity(same)["fingerprint"] != reference
    longer = random_model("random-llama", max_position_embeddings=4096)
    assert model_identity(longer)["fingerprint"] != reference


def _saved(folder: Path, change: Any = None, **options: Any) -> Path:
    model = random_model("random-llama", **options)
    if change is not None:
        change(model)
    model.save_pretrained(folder)
    return folder


def _one_number(model: Any) -> None:
    model.model.embed_tokens.weight.data[17, 3] += 1e-3


def _two_rows_change_places(model: Any) -> None:
    rows = model.lm_head.weight.data
    rows[[5, 6]] = rows[[6, 5]]


def _one_sign(model: Any) -> None:
    model.model.norm.weight.data[1] *= -1


@pytest.mark.parametrize("change", [_one_number, _two_rows_change_places, _one_sign])
def test_fingerprint_of_a_checkpoint_sees_every_number(tmp_path: Path, change: Any) -> None:
    """Finetunes that change a few rows, under the path of the model they began with."""
    before, again = (load_model(_saved(tmp_path))[0] for _ in range(2))
    after, _ = load_model(_saved(tmp_path, change))
    reference = model_identity(before)["fingerprint"]
    assert model_identity(again)["fingerprint"] == reference
    assert model_identity(after)["fingerprint"] != reference


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@given(
    dtype=st.sampled_from([torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.float64]),
    length=st.integers(1, 70),
    skip=st.integers(0, 3),
    data=st.data(),
)
def test_checksum_of_a_tensor_sees_every_bit(dtype: torch.dtype, length: int, skip: int, data: Any) -> None:
    """Of any dtype and length, wherever its memory begins."""
    tensor = torch.randint(0, 2, (length + skip,)).to(dtype)[skip:]
    changed = tensor.clone()
    place = data.draw(st.integers(0, length - 1))
    changed.view(BITS[dtype.itemsize])[place] ^= 1
    assert identity._checksum(tensor) == identity._checksum(tensor.clone())
    assert identity._checksum(tensor) != identity._checksum(changed)


def test_checksum_knows_the_place_of_a_block() -> None:
    words = torch.arange(3 * identity.WORDS)
    first, second, third = words.split(identity.WORDS)
    assert identity._checksum(words) != identity._checksum(torch.cat([second, first, third]))


def test_two_checkpoints_of_one_path_have_cells_of_their_own(tmp_path: Path) -> None:
    sweep = validate(
        {"schema": 1, "models": str(tmp_path), "formats": "int4-head", "contexts": 64, "memory": {}}
    )
    keys = set()
    for change in (None, _one_number):
        _saved(tmp_path, change)
        session = LocalSession(sweep.models[0], sweep)
        keys |= {cell.key(session.facts(cell)) for cell in expand(sweep)}
    assert len(keys) == 2 * len(expand(sweep))


def test_fingerprint_ignores_how_attention_is_computed(tiny_llama: Any) -> None:
    before = model_identity(tiny_llama)["fingerprint"]
    tiny_llama.set_attn_implementation("eager")
    assert model_identity(tiny_llama)["fingerprint"] == before


def test_identity_of_random_and_foreign_models() -> None:
    model, _ = load_model("random-llama", seed=7)
    own = model_identity(model)
    assert (own["model"], own["revision"]) == ("random-llama", "seed-7")
    foreign = model_identity(random_model("random-mistral"))
    assert (foreign["model"], foreign["revision"], foreign["weights"]) == (
        "MistralForCausalLM",
        None,
        "float32",
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (_config(dtype=torch.bfloat16), "bfloat16"),
        (_config(dtype=None), "float32"),
        (_config(quantization_config={"quant_method": "awq", "bits": 4}), "4-bit awq"),
        (
            _config(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
            "8-bit bitsandbytes",
        ),
        (_config(quantization_config={"quant_method": "mxfp4"}), "mxfp4"),
    ],
)
def test_precision_is_that_of_the_checkpoint(config: Any, expected: str) -> None:
    assert describe_precision(config) == expected


# folders


def test_local_folder_keeps_values_and_reports_its_own_precision(tmp_path: Path) -> None:
    saved = random_model("random-qwen2", dtype=torch.bfloat16)
    saved.save_pretrained(tmp_path)
    model, tokenizer = load_model(tmp_path)
    assert tokenizer is None
    assert model.dtype == torch.float32
    assert model_identity(model)["weights"] == "bfloat16"
    for name, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor.float())
    assert load_model(tmp_path, dtype=None)[0].dtype == torch.bfloat16


def test_local_folder_brings_its_tokenizer(tmp_path: Path) -> None:
    random_model("random-llama").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    _, tokenizer = load_model(tmp_path)
    assert tokenizer("abc")["input_ids"] == [97, 98, 99]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "/no/such/folder"}, "no such model folder"),
        ({"name": "no-such.gguf"}, "no such GGUF file"),
        ({"name": "smollm2-135m-instruct-q4_2"}, "did you mean 'smollm2-135m-instruct-q4_1'"),
        ({"name": "nobody/nothing"}, "not a built-in name .*random-llama.*as a hub id"),
        ({"name": "random-llama", "dtype": "float8"}, "unknown dtype 'float8'; legal: float32, bfloat16"),
        ({"name": "random-llama", "attn": "flash"}, "attention 'flash' .*legal: quantkv, sdpa, eager"),
        ({"name": "random-llama", "device": "nowhere"}, "device 'nowhere'"),
        ({"name": "random-llama", "device": "cpu", "device_map": "auto"}, "not both"),
        ({"name": "random-llama", "device_map": "auto"}, "use device"),
        ({"name": "random-llama", "revision": "main"}, "no revisions"),
    ],
)
def test_wrong_settings_are_one_clear_message(options: dict[str, str], message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        load_model(**options)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match=r"has no config\.json"):
        load_model(tmp_path)


def test_model_names_can_be_loaded_or_fetched() -> None:
    assert set(model_names()) == set(packaged.PACKAGED_MODELS) | set(RANDOM_MODELS)


def test_quiet_keeps_warnings_for_its_caller_lets_errors_through_and_puts_settings_back() -> None:
    outside, logger = handlers.BufferingHandler(10), logging.get_logger("transformers.anything")
    logging.set_verbosity_info()
    logging.get_logger().addHandler(outside)
    try:
        with quiet() as heard:
            assert not logging.is_progress_bar_enabled()
            logger.info("information")
            logger.warning("a warning")
            logger.error("an error")
        assert [record.getMessage() for record in heard] == ["a warning", "an error"]
        assert [record.getMessage() for record in outside.buffer] == ["an error"]
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.get_logger().removeHandler(outside)
        logging.set_verbosity_warning()


# the real one


def test_smollm2_is_the_model_we_think_it_is(smollm2: tuple[Any, Any]) -> None:
    model, tokenizer = smollm2
    config, found = model.config, model_identity(model)
    shape = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads)
    assert shape == (30, 9, 3)
    assert found["weights"] == "4-bit GGUF (Q4_1)"
    assert str(found["revision"]).startswith("sha256:b179c9523d0e6a0f")
    made = [row["provenance"] for row in read_rows(EXPERIMENTS / "smollm2/rows")]
    keyed = {own["fingerprint"] for own in made if own["transformers"] == transformers.__version__}
    assert keyed <= {found["fingerprint"]}  # else rows that are published would be measured again
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(out[0, prompt.input_ids.shape[1] :]) == " Paris."
