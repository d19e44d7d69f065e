"""Long generation: texts as generate gives them, choices as distributed, comparisons by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import quantkv
from quantkv import QuantizedCache
from quantkv.errors import QuantKVError
from quantkv.measurements.generation.choosing import Choice, Chooser
from quantkv.measurements.generation.run import generation_block
from quantkv.measurements.generation.section import equal_share, first_divergence, repeated_share
from quantkv.models import random_model
from quantkv.models.synthetic import byte_tokenizer

SMALL = "int4-head+r16+f16"
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def prompts(count: int = 2, length: int = 120) -> list[torch.Tensor]:
    ids = torch.randint(0, 256, (count, length), generator=torch.Generator().manual_seed(5))
    return list(ids)


def measured(formats: list[str], *, tokens: int = 24, network: Any = None, **choice: Any) -> dict[str, Any]:
    network = network or random_model("random-llama")
    return generation_block(
        network, prompts(), {name: name for name in formats}, tokens=tokens, choice=Choice(**choice)
    )


@given(TEXTS, st.data())
def test_the_first_difference_is_the_length_of_the_common_beginning(text: list[int], data: Any) -> None:
    other = data.draw(st.lists(st.integers(0, 3), min_size=len(text), max_size=len(text)))
    found = first_divergence(torch.tensor(text), torch.tensor(other))
    if found is None:
        assert text == other
    else:
        assert text[:found] == other[:found] and text[found] != other[found]


def test_shares_by_hand() -> None:
    assert equal_share(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4])) == 0.75
    assert repeated_share(torch.arange(9)) == 0
    assert repeated_share(torch.tensor([7] * 9)) == pytest.approx(5 / 6)  # six runs of four, one kind
    assert repeated_share(torch.tensor([1, 2, 3, 4, 5, 1, 2, 3, 4])) == pytest.approx(1 / 6)
    assert repeated_share(torch.tensor([1, 2, 3])) == 0


def _drawn(logits: torch.Tensor, count: int, **settings: Any) -> torch.Tensor:
    """How often each token is chosen, over steps."""
    choose = Chooser(Choice(mode="sample", **settings), random_model("random-llama"))
    chosen = torch.stack([choose(logits[None], step) for step in range(count)]).flatten()
    return chosen.bincount(minlength=len(logits)) / count


def test_samples_follow_the_distribution() -> None:
    """Four standard errors of a share of 0.5 over 4000 draws are 0.032."""
    shares = torch.tensor([0.5, 0.3, 0.2])
    assert (_drawn(shares.log(), 4000, temperature=1.0, top_p=1.0) - shares).abs().max() < 0.032
    sharper = shares.square() / shares.square().sum()
    assert (_drawn(shares.log(), 4000, temperature=0.5, top_p=1.0) - sharper).abs().max() < 0.032


def test_top_p_leaves_the_unlikely_out() -> None:
    found = _drawn(torch.tensor([0.5, 0.3, 0.2]).log(), 2000, temperature=1.0, top_p=0.7)
    assert found[2] == 0 and abs(float(found[0]) - 5 / 8) < 0.044


def test_the_same_chance_for_every_format() -> None:
    logits = torch.randn(3, 50)
    first, again = (Chooser(Choice(mode="sample"), random_model("random-llama")) for _ in range(2))
    assert torch.equal(first(logits, 4), again(logits, 4))
    assert not torch.equal(first(torch.zeros(1, 50), 4), first(torch.zeros(1, 50), 5))
    other = Chooser(Choice(mode="sample", seed=1), random_model("random-llama"))
    assert not torch.equal(first(torch.zeros(8, 50), 4), other(torch.zeros(8, 50), 4))


def test_the_end_is_never_chosen() -> None:
    network = random_model("random-llama")
    network.generation_config.eos_token_id = [2, 3]
    logits = torch.tensor([[0.0, 1.0, 9.0, 8.0]])
    assert Chooser(Choice(), network)(logits, 0).tolist() == [1]


@pytest.mark.parametrize("model", ["random-llama", "random-gemma3"])
@pytest.mark.parametrize("spec", [SMALL, "kivi-2"])
def test_texts_are_those_of_generate(model: str, spec: str) -> None:
    network = random_model(model, dtype=torch.float64)
    tokens = measured([spec], network=network)[spec]["tokens"]
    for name, used in (("text", spec), ("text_ref", "exact")):
        with quantkv.use(network, used):
            out = network.generate(
                torch.stack(prompts()), max_new_tokens=24, do_sample=False,
                cache=QuantizedCache(network.config, used),
            )  # fmt: skip
        assert torch.equal(torch.from_numpy(tokens[name]), out[:, 120:])


def test_kl_along_the_exact_text_is_that_of_decoding() -> None:
    """Both caches are fed the exact cache's text token by token."""
    network = random_model("random-llama", dtype=torch.float64)
    result = measured([SMALL], network=network)[SMALL]
    text = torch.from_numpy(result["tokens"]["text_ref"])
    log_p, log_q = (_decoded(network, spec, text).log_softmax(-1) for spec in ("exact", SMALL))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    section = result["generation"]
    assert section["kl_mean"] == pytest.approx(float(kl.mean()), rel=1e-6)
    assert section["kl_max"] == pytest.approx(float(kl.max()), rel=1e-6)
    assert section["top1_agreement"] == pytest.approx(
        float((log_p.argmax(-1) == log_q.argmax(-1)).double().mean())
    )
    parts = [float(part.mean()) for part in kl.mean(0).tensor_split(8)]
    assert section["kl_along"] == pytest.approx(parts, rel=1e-6)


def _decoded(network: Any, spec: str, text: torch.Tensor) -> torch.Tensor:
    cache = QuantizedCache(network.config, spec)
    with torch.inference_mode(), quantkv.use(network, spec):
        network(torch.stack(prompts()), cache=cache)
        steps = [network(token[:, None], cache=cache).logits for token in text[:, :-1].T]
    return torch.cat(steps, 1)


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_the_exact_cache_never_parts_from_itself(mode: str) -> None:
    section = measured(["exact"], mode=mode)["exact"]["generation"]
    assert (section["diverged"], section["equal_tokens"], section["kl_mean"]) == (0, 1.0, 0.0)
    assert section["first_divergence_median"] == section["first_divergence_min"] == section["tokens"] == 24
    assert section["repeated"] == section["repeated_ref"]


def test_a_worse_format_parts_earlier_and_is_further_off() -> None:
    results = measured(["int8-head+r16+f16", "int2-head+r16+f16"], tokens=40)
    fine, coarse = (result["generation"] for result in results.values())
    assert coarse["kl_mean"] > 10 * fine["kl_mean"] > 0
    assert coarse["first_divergence_median"] < fine["first_divergence_median"]
    assert 0 < coarse["equal_tokens"] < fine["equal_tokens"]
    for text in coarse["texts"]:
        assert text["first_divergence"] >= 1  # the first token comes from the exact prefill


def test_a_format_that_packs_nothing_fails_and_the_others_go_on() -> None:
    results = measured(["int4-head+r256", SMALL])
    assert results["int4-head+r256"]["status"] == "failed"
    assert "packed" in results["int4-head+r256"]["reason"]
    assert results[SMALL]["status"] == "ok"


def test_a_short_prompt_is_flagged() -> None:
    """Of about 130 attended tokens, 16 to 32 are packed."""
    section = measured(["int4-head+r80+f16"])["int4-head+r80+f16"]["generation"]
    assert section["packed_read_fraction"] < 0.5
    assert section["flags"] == [
        f"packed pairs are only {section['packed_read_fraction']:.1%} of those attended"
    ]


def test_rows_and_frame() -> None:
    found = quantkv.long_generation(
        random_model("random-llama"), byte_tokenizer(), [SMALL], contexts=[100, 150], tokens=12, prompts=2,
        modes=["greedy", "sample"], temperature=0.9,
    )  # fmt: skip
    frame = found.to_frame()
    assert list(frame["context"]) == [100, 150] * 2 and list(frame["mode"]) == ["greedy"] * 2 + ["sample"] * 2
    assert frame["temperature"].isna().tolist() == [True, True, False, False]
    assert (frame["packed_read_fraction"] > 0.4).all() and frame["key"].is_unique
    assert all(math.isfinite(value) for value in frame["kl_mean"])


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: Choice(mode="beam"), "unknown mode 'beam'; legal: greedy, sample"),
        (lambda: Choice(temperature=0), "temperature must be above 0"),
        (lambda: Choice(temperature="hot"), "temperature must be above 0, got 'hot'"),
        (lambda: Choice(top_p=[0.5]), r"top_p must be above 0 and at most 1, got \[0.5\]"),
        (lambda: Choice(top_p=0), "top_p must be above 0"),
        (lambda: measured([SMALL], tokens=1), "tokens must be at least 2"),
    ],
)
def test_wrong_settings_are_refused(ask: Any, words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        ask()
