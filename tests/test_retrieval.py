"""Retrieval: statistics by hand, answers as generate gives them, and refusals to conclude."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import quantkv
from quantkv import QuantizedCache
from quantkv.decode_exact.simulate import simulate
from quantkv.errors import QuantKVError
from quantkv.instruments.statistics import beats_chance, paired_p_value, wilson
from quantkv.measurements.packed_reads import check_packed, packed_read_fraction
from quantkv.measurements.retrieval.haystack import Sample
from quantkv.measurements.retrieval.run import answer, calls_after, retrieval_block
from quantkv.measurements.retrieval.section import Answered, retrieval_section
from quantkv.measurements.retrieval.tasks import Question, make_questions
from quantkv.measurements.running import prefilled
from quantkv.models import random_model
from quantkv.models.synthetic import byte_tokenizer

TOKENIZER = byte_tokenizer()
FILLER = torch.tensor(list(b"Nothing is said here, and it is said at some length. " * 60))
SMALL = "int4-head+r16+f16"


def questions(task: str = "needle", context: int = 400, tail: int = 48, **options: Any) -> list[Question]:
    options = {"depths": (0.1, 0.9), "samples": 2} | options
    return make_questions(task, TOKENIZER, FILLER, context=context, tail=tail, **options)


def sample(
    context: int = 200, question: int = 7, length: int = 4, place: tuple[int, int] = (20, 40)
) -> Sample:
    ids = torch.randint(0, 256, (context + question + length,), generator=torch.Generator().manual_seed(3))
    parts = ids.split([context, question, length])
    return Sample(context=parts[0], question=parts[1], answer=parts[2], place=place, chance=0.5)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_the_published_formula(drawn: tuple[int, int]) -> None:
    hits, n = drawn
    z, share = 1.959963984540054, hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert wilson(hits, n) == pytest.approx((middle - half, middle + half), abs=1e-9)


def test_only_samples_that_tell_arms_apart_count_in_the_paired_test() -> None:
    ref = [True] * 6 + [False] * 4
    assert paired_p_value(ref, ref) == 1.0
    assert paired_p_value([False] * 6 + ref[6:], ref) == pytest.approx(2 * 0.5**6)
    assert paired_p_value([False] * 5 + [True, True] + ref[7:], ref) == pytest.approx(2 * (1 + 6) * 0.5**6)


def test_chance_is_beaten_only_by_more_hits_than_guessing_gives() -> None:
    assert beats_chance(2, 2, 0.2) and not beats_chance(2, 2, 0.25)  # 0.04 and 0.0625
    assert not beats_chance(0, 100, 1e-5) and beats_chance(1, 100, 1e-5)


@pytest.mark.parametrize("spec", [SMALL, "kivi-2", "exact", "k.int8-channel@g32+r32+v.int4-head+r16+s2"])
@pytest.mark.parametrize("model", ["random-llama", "random-gemma3"])
def test_the_answer_is_right_when_generate_says_it(spec: str, model: str) -> None:
    """The true answer is replaced by what greedy decoding says, found by generate on a cache of its own."""
    network, asked = random_model(model, dtype=torch.float64), sample()
    context, _ = prefilled(network, asked.context[None])
    cache = QuantizedCache.from_cache(context, network.config, spec)
    with quantkv.use(network, spec):
        prompt = torch.cat([asked.context, asked.question])[None]
        out = network.generate(prompt, cache=cache, max_new_tokens=4, do_sample=False)
    greedy = out[0, prompt.shape[1] :]
    for said, right in ((greedy, True), (torch.cat([greedy[:-1], (greedy[-1:] + 1) % 256]), False)):
        told = Sample(
            **{name: getattr(asked, name) for name in ("context", "question", "place", "chance")}, answer=said
        )
        fresh = QuantizedCache.from_cache(context, network.config, spec)
        assert answer(network, fresh, told).right is right


def test_the_log_probability_is_that_of_decoding_through_the_packed_cache() -> None:
    """The simulated pass over context, question and answer, in two prompt calls and single steps."""
    network, asked = random_model("random-llama", dtype=torch.float64), sample()
    context, _ = prefilled(network, asked.context[None])
    cache = QuantizedCache.from_cache(context, network.config, SMALL)
    ids = torch.cat([asked.context, asked.question, asked.answer])
    with torch.inference_mode(), simulate(network, SMALL, calls=[200, 7]):
        logits = network(ids[None, :-1]).logits[0, -4:]
    expected = logits.log_softmax(-1).gather(-1, asked.answer[:, None]).sum()
    found = answer(network, cache, asked)
    assert found.log_prob == pytest.approx(float(expected), abs=1e-6)
    exact = answer(network, QuantizedCache.from_cache(context, network.config, "exact"), asked)
    assert abs(found.log_prob - exact.log_prob) > 1e-4


def test_packed_reads_by_hand() -> None:
    """100 cached tokens, sinks 4, recent 16, flush 16: 4 to 84 are packed for the question of 2, then
    102 tokens still pack 80, and 103 too."""
    config = random_model("random-llama").config
    cache = QuantizedCache(config, SMALL)
    pairs = 101 + 102 + 103 + 104
    assert packed_read_fraction(cache, 100, [2, 1, 1]) == pytest.approx(4 * 80 / pairs)
    mixed = QuantizedCache(config, "k.int4-head+r16+f16+v.int4-head+r48+f16")
    assert packed_read_fraction(mixed, 100, [2]) == pytest.approx((2 * 80 + 2 * 48) / (2 * (101 + 102)))


def test_layers_that_are_not_quantized_read_nothing_packed() -> None:
    """Of gemma's two layers one slides over 64 tokens and stays exact."""
    cache = QuantizedCache(random_model("random-gemma3").config, SMALL)
    assert packed_read_fraction(cache, 100, [1]) == pytest.approx(80 / (101 + 64))


def test_what_a_format_keeps_exact_cannot_be_asked_for() -> None:
    cache = QuantizedCache(random_model("random-llama").config, SMALL)
    check_packed("x", cache, 100, (4, 84), tail=16)
    for place in ((3, 20), (70, 85)):
        with pytest.raises(QuantKVError, match="x packs tokens 4 to 84 of 100"):
            check_packed("x", cache, 100, place, tail=16)


@pytest.mark.parametrize(
    ("right", "ref", "chance", "verdict"),
    [
        (2, 10, 0.25, "worse"),
        (10, 4, 0.01, "better"),
        (9, 10, 0.25, "no difference shown"),
        (0, 5, 0.25, None),
        (10, 2, 0.25, None),
    ],
)
def test_verdicts(right: int, ref: int, chance: float, verdict: str | None) -> None:
    """10 of 10 against 4 of 10 have p = 2/64; 5 of 10 are reached by guessing at 1/4 with p = 0.078."""
    section = _section_of(right, ref, chance)
    assert section["verdict"] == verdict
    assert section["conclusive"] is (verdict is not None)
    assert bool(section["flags"]) is bool(section["inconclusive_because"]) is (verdict is None)


def _section_of(right: int, ref: int, chance: float) -> dict[str, Any]:
    first = [[i < n for i in range(10)] for n in (right, ref)]
    asked = [
        Question(
            "needle",
            depth=float(i >= 5),
            sample=Sample(
                context=torch.zeros(1),
                question=torch.zeros(1),
                answer=torch.zeros(1),
                place=(0, 1),
                chance=chance,
            ),
        )
        for i in range(10)
    ]
    own, reference = ([Answered(r, -1.0 if r else -3.0, torch.zeros(1)) for r in one] for one in first)
    return retrieval_section(asked, own, reference, packed_read=0.9)


def test_scores_stand_beside_the_exact_caches() -> None:
    section = _section_of(4, 7, 0.01)
    assert (section["hits"], section["exact_match"], section["hits_ref"], section["exact_match_ref"]) == (
        4,
        0.4,
        7,
        0.7,
    )
    assert section["log_prob"] == pytest.approx(-2.2) and section["log_prob_ref"] == pytest.approx(-1.6)
    assert section["delta_log_prob"] == pytest.approx(-0.6)
    assert section["delta_log_prob_low"] is not None and section["delta_log_prob_low"] < -0.6
    assert [(d["depth"], d["n"], d["hits"], d["hits_ref"]) for d in section["depths"]] == [
        (0, 5, 4, 5),
        (1, 5, 0, 2),
    ]


def test_a_random_model_is_at_chance_and_the_row_says_so() -> None:
    found = quantkv.retrieval(
        random_model("random-llama"),
        TOKENIZER,
        {"small": SMALL, "same": "exact"},
        tasks=["needle", "records"],
        lengths=[700],
        depths=[0.2],
        samples=2,
        tail=48,
    )
    assert [row["retrieval"]["task"] for row in found.rows] == ["needle"] * 2 + ["records"] * 2
    for row in found.rows:
        section = row["retrieval"]
        assert row["status"] == "ok" and row["protocol"]["text"] == "python-docs"
        assert section["conclusive"] is False and section["verdict"] is None
        assert "no better than chance" in section["inconclusive_because"]
        assert section["flags"] == [f"inconclusive: {section['inconclusive_because']}"]
        assert section["packed_read_fraction"] > 0.5
    frame = found.to_frame()
    assert list(frame["n"]) == [2] * 4 and set(frame["kind"]) == {"retrieval"}
    same = frame[frame["format"] == "same"]
    assert (same["log_prob"] == same["log_prob_ref"]).all()


def test_an_arm_that_fails_costs_no_other() -> None:
    network = random_model("random-llama")
    asked = questions(depths=(1,), samples=1)
    results = retrieval_block(network, asked, {"wide": "int4-head+r128", "good": SMALL}, tail=48)
    assert results["good"]["status"] == "ok"
    assert results["wide"]["status"] == "failed" and "would be read exactly" in results["wide"]["reason"]
    assert results["wide"]["retrieval"] is None


def test_functions_have_no_packed_cache() -> None:
    with pytest.raises(QuantKVError, match="round_trip is no packed format"):

        def round_trip(x: Any) -> Any:
            return x

        quantkv.retrieval(random_model("random-llama"), TOKENIZER, [round_trip], lengths=[600])


def test_the_calls_after_the_context() -> None:
    assert calls_after(sample(question=5, length=1)) == [5]
    assert calls_after(sample(question=5, length=3)) == [5, 1, 1]


def test_the_real_model_finds_a_needle_exactly_and_through_eight_bits(smollm2: Any) -> None:
    network, tokenizer = smollm2
    options: dict[str, Any] = {"lengths": [256], "depths": [0.0, 1.0], "samples": 1, "tail": 128}
    (row,) = quantkv.retrieval(network, tokenizer, ["int8-head"], tasks=["needle"], **options).rows
    section = row["retrieval"]
    assert (section["hits"], section["hits_ref"], section["conclusive"]) == (2, 2, True)
    assert section["verdict"] == "no difference shown"
    assert abs(section["delta_log_prob"]) < 0.1
