"""The model in bfloat16 beside the one that is measured."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from quantkv import perplexity
from quantkv.instruments.divergence import kl_divergence
from quantkv.instruments.windows import make_windows
from quantkv.measurements.quality.run import quality_block
from quantkv.measurements.quality.scoring import bf16_twin, no_bf16_twin
from quantkv.models import random_model

IDS = torch.randint(0, 256, (900,), generator=torch.Generator().manual_seed(3))
SMALL = "int4-head+r8+f16+s2+k8"


@pytest.mark.parametrize("name", ["random-llama", "random-gemma3"])
def test_the_twin_is_what_loading_in_bf16_gives(name, tmp_path):
    model = random_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    twin = bf16_twin(model)
    with torch.no_grad():
        assert torch.equal(twin(IDS[None, :80]).logits, loaded(IDS[None, :80]).logits)
    assert twin.dtype == torch.bfloat16 and model.dtype == torch.float32
    frequencies = [buffer for name, buffer in twin.named_buffers() if "inv_freq" in name]
    assert frequencies and all(buffer.dtype == torch.float32 for buffer in frequencies)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_tied_weights_stay_one_tensor():
    model = random_model("random-llama", tie_word_embeddings=True)
    twin = bf16_twin(model)
    assert twin.lm_head.weight is twin.model.embed_tokens.weight


def test_the_scale_is_the_mean_over_all_windows_and_shared_by_all_formats():
    model = random_model("random-llama")
    plan = make_windows(IDS, span=96, score=16, windows=3)
    twin, each = bf16_twin(model), []
    with torch.no_grad():
        for ids in plan.at(96):
            precise, coarse = (
                m(ids[None, :-1]).logits[0, 96:].float().log_softmax(-1) for m in (model, twin)
            )
            each.append(kl_divergence(precise, coarse))
    found = quality_block(
        model, plan.at(96), {"a": SMALL, "b": "int8-head+r8+f16"}, context=96, protocol={"scale_bf16": True}
    )
    values = [result["quality"]["scale_bf16_kl"] for result in found.values()]
    assert values == pytest.approx([torch.cat(each).mean().item()] * 2, rel=1e-3) and values[0] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_16_bits_has_no_scale_and_says_why(dtype):
    model = random_model("random-llama", dtype=dtype)
    plan = make_windows(IDS, span=96, score=16, windows=1)
    (result,) = quality_block(
        model, plan.at(96), {"a": SMALL}, context=96, protocol={"scale_bf16": True}
    ).values()
    word = str(dtype).removeprefix("torch.")
    assert result["quality"]["scale_bf16_kl"] is None
    assert result["effective"]["notes"] == [f"no scale_bf16: the model runs in {word} itself"]


def test_a_model_under_device_hooks_is_not_copied():
    model = random_model("random-llama")
    assert no_bf16_twin(model) is None
    model.model.layers[0]._hf_hook = object()
    assert "spread over devices" in no_bf16_twin(model)


def test_without_being_asked_for_it_is_not_measured():
    quality = perplexity(random_model("random-llama"), IDS, SMALL, context=96, score=16, windows=1)
    assert quality.scale_bf16_kl is None
