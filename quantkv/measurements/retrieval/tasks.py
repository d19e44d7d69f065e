"""The tasks by name, and their questions: made from a seed about a context of an exact number of tokens, and
the same for every format.

A task is a class that has a `name` and `make`; `register_task` makes it known by its name.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from quantkv.data import bos_id
from quantkv.errors import QuantKVError
from quantkv.instruments.windows import check_counts
from quantkv.measurements.retrieval.haystack import TAIL, Haystack, Sample

DEPTHS = (0.1, 0.5, 0.9)
SAMPLES = 8

_TEXT = """
apple arm army baby ball bank bed bell bird blood boat body book bottle bowl box bread bridge
brother bus cake camp captain card castle cat chair chicken child church city clock cloud coat
coffee corn cow crown cup dance desk doctor dog door dress drink driver ear earth egg engine eye
face farm father field finger fire fish flag floor flower foot forest friend fruit game garden gate
girl glass gold grass hair hand hat head heart hill home horse hospital hotel house ice iron island
jacket judge juice key king kitchen knife lady lake lamp leaf leg letter library lion lip market
meat milk mirror money moon morning mother mountain mouse mouth music neck night nose ocean office
oil orange page paint paper park pen phone picture pig pilot plane plant plate pocket poem prince
queen radio rain river road rock roof room rose salt school sea ship shirt shoe shop silver singer
sister skin sky smoke snow soldier song soup spring square star station stone storm street sugar sun
table tail tea teacher temple tree truck valley village wall watch water wheel wife wind window wine
wing winter wolf wood world yard
"""
WORDS = tuple(_TEXT.split())
"""Short common words, most of them one token in any vocabulary."""


class Task(Protocol):
    """One kind of question, made from a seed."""

    @property
    def name(self) -> str: ...

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        """A sample whose fact begins at `depth`: 0 is the first legal place, 1 the last."""


@dataclass(frozen=True)
class Passkey:
    """A number in endless idle sentences (Mohtashami and Jaggi 2023, arXiv:2305.16300)."""

    name: str = "passkey"
    noise: str = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        key = dice.randint(10_000, 99_999)
        fact = haystack.encode(f" The pass key is {key}. Remember it. {key} is the pass key.")
        built = haystack.build(fact, depth, dice, filler=haystack.encode(self.noise))
        return haystack.sample(built, " What is the pass key? The pass key is", f" {key}", 1 / 90_000)


@dataclass(frozen=True)
class Needle:
    """Secret numbers in running text, one of them asked for (as in RULER, arXiv:2404.06654): `keys` needles
    of one form; all but one are distractors, so a guesser is right once in `keys`."""

    name: str
    keys: int = 1

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        said = [f"\nThe secret number of the {word} is" for word in dice.sample(WORDS, self.keys)]
        numbers = dice.sample(range(10_000, 100_000), self.keys)
        first, *others = [haystack.encode(f"{start} {value}.\n") for start, value in zip(said, numbers)]
        built = haystack.build(first, depth, dice, others=others)
        return haystack.sample(built, said[0], f" {numbers[0]}", 1 / self.keys if others else 1 / 90_000)


@dataclass(frozen=True)
class Variables:
    """Variable tracking (after RULER, arXiv:2404.06654): names set to numbers, other names set to those
    names, and one of the latter to be resolved; the question resolves `shown` chains itself, to show how.

    The answer names the variable in between and its number; who guesses picks a chain not shown.
    """

    name: str = "variables"
    chains: int = 6
    shown: int = 2

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, 2 * self.chains)
        digits = dice.sample("123456789", self.chains)
        chains = [
            (name, inner, f"{digit}{dice.randint(1000, 9999)}")
            for name, inner, digit in zip(words[: self.chains], words[self.chains :], digits)
        ]
        lines = [f"{inner} = {value}\n" for _, inner, value in chains]
        links = [f"{name} -> {inner}\n" for name, inner, _ in chains]
        dice.shuffle(lines)
        dice.shuffle(links)
        built = haystack.build(haystack.encode("\n" + "".join(lines + links)), depth, dice)
        (name, inner, value), shown = chains[0], chains[1 : 1 + self.shown]
        resolved = "".join(f"{left} -> {middle} = {right}\n" for left, middle, right in shown)
        chance = 1 / (self.chains - self.shown)
        return haystack.sample(built, f"\n{resolved}{name} ->", f" {inner} = {value}", chance)


@dataclass(frozen=True)
class Induction:
    """A list of word pairs, one word repeated, its partner to follow (Olsson et al. 2022, arXiv:2209.11895).

    A model of 135M parameters finds the partner among twelve about every second time, among 24 hardly ever.
    """

    name: str = "induction"
    pairs: int = 12

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, 2 * self.pairs)
        pairs = list(zip(words[: self.pairs], words[self.pairs :]))
        key, value = dice.choice(pairs)
        listed = haystack.encode("\n" + "".join(f"{left}: {right}\n" for left, right in pairs))
        return haystack.sample(haystack.build(listed, depth, dice), f"\n{key}:", f" {value}", 1 / self.pairs)


@dataclass(frozen=True)
class Records:
    """A list of JSON objects, copied from memory: after one of them and the beginning of the next, the rest
    of that next one must follow, character by character.

    Somebody who knows the form but not which record comes next is right once in `records`.
    """

    name: str = "records"
    records: int = 4

    def make(self, haystack: Haystack, depth: float, seed: str) -> Sample:
        dice = random.Random(seed)
        words = dice.sample(WORDS, 4 * self.records)
        records = [_record(words[i :: self.records], dice.randint(10, 99)) for i in range(self.records)]
        built = haystack.build(haystack.encode("\n[\n" + "\n".join(records) + "\n]\n"), depth, dice)
        before, asked = dice.choice(list(itertools.pairwise(records)))
        given, space, rest = asked.partition(' "price"')
        return haystack.sample(built, f"\n{before}\n{given}", space + rest, 1 / self.records)


def _record(words: list[str], price: int) -> str:
    item, color, tag, other = words
    return f'{{"item": "{item}", "price": {price}, "color": "{color}", "tags": ["{tag}", "{other}"]}},'


_TASKS: dict[str, Task] = {}


def register_task(task: Task) -> None:
    """Make a task known under its name."""
    if task.name in _TASKS:
        raise QuantKVError(f"a task named {task.name!r} is registered already")
    _TASKS[task.name] = task


def task_names() -> list[str]:
    return list(_TASKS)


def task_named(name: str) -> Task:
    """The task of this name; QuantKVError naming the legal ones otherwise."""
    if name not in _TASKS:
        raise QuantKVError(f"unknown task {name!r}; legal tasks: {', '.join(_TASKS)}")
    return _TASKS[name]


for _task in (Passkey(), Needle("needle"), Needle("multi-key", keys=4), Variables(), Induction(), Records()):
    register_task(_task)


@dataclass(frozen=True, slots=True)
class Question:
    """A sample of a task, and the depth it was made for."""

    task: str
    depth: float
    sample: Sample


def make_questions(
    task: str,
    tokenizer: Any,
    filler: Tensor,
    *,
    context: int,
    depths: Sequence[float] = DEPTHS,
    samples: int = SAMPLES,
    tail: int = TAIL,
    seed: int = 0,
) -> list[Question]:
    """`samples` questions at each depth, about contexts of exactly `context` tokens, a BOS included."""
    maker = task_named(task)
    check_counts(samples=samples)
    check_counts(0, tail=tail)
    if not depths:
        raise QuantKVError("depths must be a list of numbers from 0 to 1, not empty")
    haystack = Haystack(tokenizer, filler, context, tail=tail, bos_id=bos_id(tokenizer))
    return [
        Question(task, depth, maker.make(haystack, depth, f"{seed}/{task}/{context}/{depth}/{index}"))
        for depth in depths
        for index in range(samples)
    ]


def digest(questions: Iterable[Question]) -> str:
    """SHA-256 over every token of the questions."""
    found = hashlib.sha256()
    for question in questions:
        for part in (question.sample.context, question.sample.question, question.sample.answer):
            found.update(part.numpy().tobytes() + b"/")
    return found.hexdigest()
