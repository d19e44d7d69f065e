"""`retrieval` and `long_generation`: what a loaded model still does on packed caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quantkv.arms.arm import Format
from quantkv.arms.packed import spec_of
from quantkv.data import Text, load_text, tokenize
from quantkv.instruments.arguments import distinct, list_of_counts, list_of_names, list_of_shares
from quantkv.measurements.generation.choosing import Choice
from quantkv.measurements.generation.run import generation_block
from quantkv.measurements.retrieval.questions import DEPTHS, PROMPTS, SAMPLES, make_prompts, make_questions
from quantkv.measurements.retrieval.run import retrieval_block
from quantkv.measurements.retrieval.tasks import TAIL, task_names
from quantkv.sweep.evaluate import Evaluation, Study, labelled

Formats = Iterable[Format] | Mapping[str, Format]
Source = str | Text | dict[str, Any]


def retrieval(
    model: Any,
    tok: Any,
    formats: Formats,
    *,
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int],
    depths: Sequence[float] = DEPTHS,
    samples: int = SAMPLES,
    tail: int = TAIL,
    text: Source = "python-docs",
    seed: int = 0,
) -> Evaluation:
    """Ask a model about contexts of exactly `lengths` tokens, through each format and the exact cache.

    Each task (all of them unless said otherwise) is asked `samples` times at each of the `depths`, 0 to 1,
    of what it asks for; the last `tail` tokens hold nothing of that, so that every format has packed it. A
    row per task, length and format; where the exact cache does no better than chance, the row says that
    nothing can be concluded.
    """
    lengths = list_of_counts("lengths", lengths)
    tasks = task_names() if tasks is None else list_of_names("tasks", tasks, task_names())
    depths = list_of_shares("depths", depths)
    study = _study(model, tok, formats, text, seed)
    settings: dict[str, Any] = {"depths": depths, "samples": samples, "tail": tail}
    for task in tasks:
        for length in lengths:
            questions = make_questions(task, tok, study.ids, context=length, seed=seed, **settings)
            add = study.adder("retrieval", length, {**_said(study), "task": task, **settings})
            retrieval_block(model, questions, study.arms, tail=tail, seed=seed, on_arm=add)
    return Evaluation(study.rows)


def long_generation(
    model: Any,
    tok: Any,
    formats: Formats,
    *,
    contexts: Sequence[int],
    tokens: int = 256,
    prompts: int = PROMPTS,
    modes: Sequence[str] = ("greedy",),
    temperature: float = Choice.temperature,
    top_p: float = Choice.top_p,
    text: Source = "python-docs",
    seed: int = 0,
) -> Evaluation:
    """Generate `tokens` tokens after `prompts` prompts of each context through each format, beside the exact
    cache: greedily, or by sampling with the same random numbers. A row per mode, context and format."""
    contexts = list_of_counts("contexts", contexts)
    chance = {"temperature": temperature, "top_p": top_p}
    choices = [
        Choice(mode=mode, seed=seed, **chance) for mode in distinct("modes", modes, "['greedy', 'sample']")
    ]
    study = _study(model, tok, formats, text, seed)
    for choice in choices:
        for context in contexts:
            places = {"context": context, "span": max(contexts), "tokens": tokens, "prompts": prompts}
            protocol = {**_said(study), "mode": choice.mode, "tokens": tokens, "prompts": prompts}
            protocol |= chance if choice.mode == "sample" else {}
            generation_block(
                model,
                make_prompts(study.ids, tok, seed=seed, **places),
                study.arms,
                tokens=tokens,
                choice=choice,
                on_arm=study.adder("generation", context, protocol),
            )
    return Evaluation(study.rows)


def _study(model: Any, tok: Any, formats: Formats, text: Source, seed: int) -> Study:
    """Formats checked and the text tokenized, before anything runs."""
    arms = labelled(formats)
    for label, given in arms.items():
        spec_of(label, given)
    loaded = text if isinstance(text, Text) else load_text(text)
    return Study(model, tok, arms, loaded, tokenize(loaded, tok), seed, batch=1)


def _said(study: Study) -> dict[str, Any]:
    return {"text": study.text.name, "text_sha256": study.text.sha256}
