"""Protocols of papers by name: what they mean, and that their numbers are those of the real cache."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from stores import round_trip

from quantkv import QuantizedCache, cache_argument, evaluate, load_model, parse_spec, perplexity
from quantkv.data import Text
from quantkv.errors import QuantKVError
from quantkv.measurements.quality.protocols import Protocol, make_protocol
from quantkv.measurements.quality.run import quality_block
from quantkv.models import random_model
from quantkv.policy import Window

LENGTH = 64
WHOLE = {"whole": LENGTH}
IDS = torch.randint(0, 256, (LENGTH * 3 + 40,), generator=torch.Generator().manual_seed(9))
SMALL = "int4-head+r8+f8+s2"


@pytest.fixture
def model():
    return random_model("random-llama", dtype=torch.float64)


def fed(model, ids, sizes, cache):
    """NLL of each id but the first: the window fed in calls of these sizes to a real cache."""
    model.set_attn_implementation("quantkv")
    logits, position = [], 0
    with torch.no_grad():
        for size in sizes:
            step = model(ids[None, position : position + size], **{cache_argument(model): cache})
            logits.append(step.logits[0])
            position += size
    return torch.nn.functional.cross_entropy(torch.cat(logits), ids[1 : position + 1], reduction="none")


def test_the_reference_of_whole_windows_is_the_published_loop(model):
    """Windows of 64 one after another, logits shifted against labels, means over windows of equal length."""
    losses = []
    with torch.no_grad():
        for i in range(3):
            batch = IDS[None, i * LENGTH : (i + 1) * LENGTH]
            shift = model(batch).logits[:, :-1]
            losses.append(torch.nn.functional.cross_entropy(shift[0], batch[0, 1:]) * LENGTH)
    expected = torch.exp(torch.stack(losses).sum() / (3 * LENGTH)).item()
    quality = perplexity(model, IDS, "exact", context=LENGTH, protocol=WHOLE)
    assert quality.perplexity == pytest.approx(expected, abs=1e-9)
    assert quality.tokens_scored == 3 * (LENGTH - 1)
    assert [window["start"] for window in quality.windows] == [1, LENGTH + 1, 2 * LENGTH + 1]


@pytest.mark.parametrize(
    "prefill, sizes, reads",
    [("stream", [1] * 63, "exact"), ("chunk:20", [20, 20, 20, 3], "exact"), ("final", [63], "final")],
)
def test_whole_windows_score_what_the_real_cache_gives(model, prefill, sizes, reads):
    quality = perplexity(model, IDS, SMALL, context=LENGTH, protocol=WHOLE, prefill=prefill)
    for i, window in enumerate(quality.windows):
        ids = IDS[i * LENGTH : (i + 1) * LENGTH]
        literal = fed(model, ids, sizes, QuantizedCache(model.config, SMALL, prefill=reads))
        assert window["sum_nll"] == pytest.approx(literal.sum().item(), abs=1e-6)
    assert quality.kl_mean > 0


def test_packed_read_fraction_of_a_whole_window_by_hand(model):
    """Queries 0 to 62; 2 sinks, 8 recent, flush 8: query i finds 8 * ((i - 10) // 8) tokens packed."""
    packed = [8 * ((i - 10) // 8) if i >= 10 else 0 for i in range(LENGTH - 1)]
    quality = perplexity(model, IDS, SMALL, context=LENGTH, protocol=WHOLE, windows=1)
    assert quality.packed_read_fraction == pytest.approx(sum(packed) / sum(range(1, LENGTH)))


def test_final_reads_packed_values_of_its_own_prompt(model):
    """63 tokens: packed up to 2 + 8 * (53 // 8) = 50, so query i reads those of 2..49 that it attends to."""
    packed = [max(0, min(i, 49) - 1) for i in range(LENGTH - 1)]
    quality = perplexity(model, IDS, SMALL, context=LENGTH, protocol=WHOLE, windows=1, prefill="final")
    assert quality.packed_read_fraction == pytest.approx(sum(packed) / sum(range(1, LENGTH)))


def test_windows_are_those_of_the_text_from_its_start_and_a_rest_is_left_out():
    plan = make_protocol(WHOLE).windows_of(IDS, None, span=LENGTH)
    assert torch.equal(torch.cat(plan.at(LENGTH)), IDS[: 3 * LENGTH])
    assert len(make_protocol(WHOLE, windows=2).windows_of(IDS, None, span=LENGTH).at(LENGTH)) == 2
    with pytest.raises(QuantKVError, match="4 whole windows of 64 tokens need 256, there are 232"):
        make_protocol(WHOLE, windows=4).windows_of(IDS, None, span=LENGTH)
    with pytest.raises(QuantKVError, match="1 whole windows of 64 tokens need 64, there are 63"):
        make_protocol(WHOLE).windows_of(IDS[:63], None, span=LENGTH)


@pytest.mark.parametrize("adds, found, first", [(True, "text", 7), (False, "none", int(IDS[0]))])
def test_a_text_gets_the_one_bos_that_its_tokenizer_puts_in_front(adds, found, first):
    class Tokenizer(SimpleNamespace):
        def __call__(self, text):
            return {"input_ids": [7, 65] if adds else [65]}

    protocol, tokenizer = make_protocol(WHOLE), Tokenizer(bos_token_id=7)
    windows = protocol.plan(IDS, tokenizer, span=LENGTH).at(LENGTH)
    assert protocol.bos_found(tokenizer) == found
    assert [int(w[0]) for w in windows] == [first, *(int(IDS[i * LENGTH - adds]) for i in (1, 2))]


def test_presets():
    gptq, fake = make_protocol("gptq-2048"), make_protocol("fake-quant")
    assert (gptq.whole, gptq.score, gptq.windows, gptq.prefill, gptq.bos) == (
        2048,
        2047,
        None,
        "stream",
        "text",
    )
    assert (fake.sinks, fake.recent, fake.prefill, fake.whole) == (0, 0, "final", None)
    both = make_protocol({"preset": "gptq-2048", "prefill": "final", "sinks": 0, "recent": 0}, windows=5)
    assert (both.windows, both.prefill, both.sinks, both.score) == (5, "final", 0, 2047)
    assert make_protocol() == Protocol() == make_protocol(None, windows=None)
    assert make_protocol(gptq, windows=3) == replace(gptq, windows=3)


def test_a_row_says_what_was_given_and_a_zero_is_given():
    assert make_protocol("fake-quant").row() == {
        "preset": "fake-quant", "prefill": "final", "score": 128, "windows": 8, "bos": "per_window",
        "sinks": 0, "recent": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "given, changes, message",
    [
        ("gptq-1024", {}, "unknown protocol 'gptq-1024'; legal: gptq-2048, fake-quant"),
        ({"scor": 3}, {}, "unknown setting 'scor'; legal: preset, prefill, score"),
        ("gptq-2048", {"prefill": "exact"}, "prefill exact reads no packed value"),
        ("gptq-2048", {"score": 128}, "have score 2047"),
        ({"preset": "gptq-2048", "whole": 64}, {}, "gptq-2048 means whole 2048: for 64 leave the preset out"),
        ({"preset": "fake-quant", "recent": 64}, {}, "fake-quant means recent 0"),
        ({"bos": "never"}, {}, "bos 'never'; legal: per_window, text, none"),
        ({"bos": "text"}, {}, "only windows scored whole"),
        ({"windows": None}, {}, "only windows scored whole"),
    ],
)
def test_wrong_protocols_are_one_clear_error(given, changes, message):
    with pytest.raises(QuantKVError, match=message):
        make_protocol(given, **changes)


def test_another_context_than_the_window_is_refused(model):
    with pytest.raises(QuantKVError, match="whole windows of 64 tokens: give the context 64, not 32"):
        perplexity(model, IDS, SMALL, context=32, protocol=WHOLE)
    with pytest.raises(QuantKVError, match="puts no BOS into its windows"):
        perplexity(model, IDS, SMALL, context=LENGTH, protocol=WHOLE, bos_id=7)
    protocol = make_protocol(WHOLE)
    assert protocol.contexts([32, 64], alone=False) == [64] == protocol.contexts([64], alone=True)
    for given, alone in (([32, 64], True), ([32], False)):
        with pytest.raises(QuantKVError, match="give the context 64"):
            protocol.contexts(given, alone=alone)


def test_sinks_and_window_are_overruled_in_every_layer():
    spec = parse_spec("int4-head+s4+r64+f32").with_layers({"-1": "int8-head+s4+r16+f16"})
    ran = make_protocol("fake-quant").overrule_spec(spec)
    ((_, last),) = ran.layers
    assert (ran.sinks, ran.key.recent, ran.value.recent, ran.key.flush) == (0, 0, 0, 32)
    assert (last.sinks, last.key.recent, last.value.flush) == (0, 0, 16)
    assert make_protocol().overrule_spec(spec) == spec
    assert make_protocol("fake-quant").overrule_window(Window(4, 64, 32, 32)) == Window(0, 0, 32, 32)


def test_fake_quant_is_a_simulator_and_the_row_says_so(model):
    """The real cache with prefill `final` and no exact tokens gives the same, whatever the format keeps."""
    asked, ran = "int4-head+r32+f16+s4", "int4-head+r0+f16+s0"
    protocol = make_protocol("fake-quant", windows=1, score=16)
    (ids,) = protocol.windows_of(IDS, None, span=96).at(96)
    (result,) = quality_block(model, [ids], {"a": asked}, context=96, protocol=protocol).values()
    literal = fed(model, ids, [96, *[1] * 16], QuantizedCache(model.config, ran, prefill="final"))
    assert result["quality"]["nll"] == pytest.approx(literal[96:].mean().item(), abs=1e-8)
    assert parse_spec(result["effective"]["spec"]) == parse_spec(ran)
    assert (result["effective"]["sinks"], result["effective"]["recent_key"]) == (0, 0)


def test_fake_quant_holds_for_plain_functions_too(model):
    tensor = parse_spec("int4-head").key

    def twin(x):
        return round_trip(tensor, x)

    protocol = make_protocol("fake-quant", windows=2, score=16)
    windows = protocol.windows_of(IDS, None, span=96).at(96)
    one, other = quality_block(
        model, windows, {"a": "int4-head", "b": twin}, context=96, protocol=protocol
    ).values()
    assert one["quality"]["nll"] == pytest.approx(other["quality"]["nll"], abs=1e-12)
    assert (other["effective"]["sinks"], other["effective"]["recent_value"]) == (0, 0)


def test_rows_carry_the_name_and_what_ran():
    text = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
    loaded = load_model("random-llama")
    rows = evaluate(
        *loaded, ["int4-head+f16+k8"], text=text, contexts=[96], windows=2, score=16, protocol="fake-quant"
    ).rows
    assert rows[0]["protocol"]["preset"] == "fake-quant" and rows[0]["protocol"]["prefill"] == "final"
    assert rows[0]["effective"]["spec"] == "int4-head+r0+f16+s0+k8"
    assert rows[0]["effective"]["notes"] == ["spec: asked for int4-head+f16+k8, ran int4-head+r0+f16+s0+k8"]
    whole = evaluate(*loaded, ["int8-head+r8+f8"], text=text, contexts=[64], protocol={"whole": 64}).rows
    count = len(loaded[1](text.text)["input_ids"]) // 64
    assert whole[0]["protocol"]["windows"] == count == len(whole[0]["quality"]["windows"])
    assert (whole[0]["protocol"]["whole"], whole[0]["requested"]["context"]) == (64, 64)
