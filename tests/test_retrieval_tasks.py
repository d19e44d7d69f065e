"""Retrieval tasks: exact lengths, places that can be decoded again, answers that stand in the context."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkv.errors import QuantKVError
from quantkv.measurements.generation.cells import make_prompts
from quantkv.measurements.retrieval.haystack import HEAD, TAIL, Haystack, Sample
from quantkv.measurements.retrieval.tasks import digest, make_questions, register_task, task_named, task_names
from quantkv.models.synthetic import byte_tokenizer

TOKENIZER = byte_tokenizer()
FILLER = torch.tensor(list(b"Running text of no meaning, which says nothing of anything at all. " * 40))
BOS = 0
SHIPPED = ("passkey", "needle", "multi-key", "variables", "induction", "records")


def haystack(length: int = 2000, tail: int = TAIL) -> Haystack:
    return Haystack(TOKENIZER, FILLER, length, tail=tail, bos_id=BOS)


def said(ids: Any) -> str:
    return bytes(ids.tolist()).decode()


def made(task: str, depth: float = 0.5, seed: str = "0", **options: Any) -> Sample:
    return task_named(task).make(haystack(**options), depth, seed)


def test_every_task_of_the_list_is_there() -> None:
    assert set(SHIPPED) <= set(task_names())


@pytest.mark.parametrize("task", SHIPPED)
@settings(max_examples=25, deadline=None)
@given(
    depth=st.floats(0, 1),
    length=st.integers(1400, 4000),
    tail=st.integers(0, 300),
    seed=st.integers(0, 10**6),
)
def test_lengths_and_places_are_exact(task: str, depth: float, length: int, tail: int, seed: int) -> None:
    sample = made(task, depth, str(seed), length=length, tail=tail)
    start, stop = sample.place
    assert len(sample.context) == length and sample.context[0] == BOS
    assert HEAD <= start < stop <= length - tail
    assert start == HEAD + round(depth * (length - tail - HEAD - (stop - start)))
    assert said(sample.answer).strip(' \n",]}') != ""
    for word in re.findall(r"[a-z]+|\d+", said(sample.answer)):
        assert word in said(sample.context[start:stop])


@pytest.mark.parametrize("task", ["passkey", "needle", "multi-key"])
def test_the_answer_stands_nowhere_but_at_its_place(task: str) -> None:
    sample = made(task, 0.3, "7")
    start, stop = sample.place
    outside = said(sample.context[1:start]) + "|" + said(sample.context[stop:])
    assert said(sample.answer).strip() not in outside + said(sample.question)


def test_the_needle_asked_for_is_the_one_at_the_depth() -> None:
    sample = made("multi-key", 0.5, "3")
    fact = said(sample.context[slice(*sample.place)])
    assert fact == said(sample.question) + said(sample.answer) + ".\n"
    others = re.findall(r"\nThe secret number of the (\w+) is (\d{5})\.\n", said(sample.context[1:]))
    assert len({word for word, _ in others}) == 4 and sample.chance == 1 / 4


def test_a_chain_of_variables_leads_to_the_answer() -> None:
    for seed in range(20):
        sample = made("variables", 0.5, str(seed))
        lines = said(sample.context[slice(*sample.place)]).strip().splitlines()
        values = dict(line.split(" = ") for line in lines if "=" in line)
        links = dict(line.split(" -> ") for line in lines if ">" in line)
        *shown, asked = said(sample.question).strip().splitlines()
        resolved = {name: f"{name} -> {links[name]} = {values[links[name]]}" for name in links}
        assert asked + said(sample.answer) == resolved.pop(asked.removesuffix(" ->"))
        assert set(shown) < set(resolved.values())
        assert sample.chance == 1 / (len(links) - len(shown))


def test_a_pair_and_a_record_are_completed_as_they_were_listed() -> None:
    pair = made("induction", 0.2, "5")
    assert said(pair.question) + said(pair.answer) + "\n" in said(pair.context[slice(*pair.place)])
    record = made("records", 0.2, "5")
    assert said(record.question) + said(record.answer) + "\n" in said(record.context[slice(*record.place)])


def test_a_seed_decides_everything_and_another_seed_something_else() -> None:
    options: dict[str, Any] = {"context": 1500, "depths": (0.5,), "samples": 2}
    first, again = (digest(make_questions("needle", TOKENIZER, FILLER, **options)) for _ in range(2))
    assert first == again
    assert first != digest(make_questions("needle", TOKENIZER, FILLER, **options, seed=1))
    questions = make_questions("needle", TOKENIZER, FILLER, **options)
    assert not torch.equal(questions[0].sample.answer, questions[1].sample.answer)


def test_questions_come_depth_by_depth() -> None:
    questions = make_questions("needle", TOKENIZER, FILLER, context=900, depths=(0, 1), samples=3)
    assert [question.depth for question in questions] == [0, 0, 0, 1, 1, 1]
    assert {question.sample.place[0] for question in questions[:3]} == {HEAD}
    assert {question.sample.place[1] for question in questions[3:]} == {900 - TAIL}


def test_prompts_end_at_the_same_places_for_every_context() -> None:
    ids = torch.arange(2000)
    options: dict[str, Any] = {"span": 300, "tokens": 50, "prompts": 3, "seed": 4}
    short, long = (make_prompts(ids, TOKENIZER, context=n, **options) for n in (100, 300))
    assert [len(p) for p in short] == [100] * 3 and [len(p) for p in long] == [300] * 3
    assert all(torch.equal(s, p[-100:]) for s, p in zip(short, long))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: task_named("nedle"), "unknown task 'nedle'; legal tasks: passkey"),
        (lambda: haystack(length=TAIL + HEAD), "no room for facts between its first 16 and its last 160"),
        (lambda: made("induction", length=220), "no room for a fact of"),
        (lambda: made("multi-key", length=TAIL + HEAD + 60), "do not fit beside each other"),
        (lambda: made("needle", depth=1.5), "depth 1.5 is outside 0..1"),
        (lambda: register_task(task_named("needle")), "registered already"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask: Any, words: str) -> None:
    with pytest.raises(QuantKVError, match=re.escape(words)):
        ask()
