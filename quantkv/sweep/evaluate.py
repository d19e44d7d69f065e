"""`evaluate`, `retrieval` and `long_generation`: kinds of a sweep on a model that is loaded already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantkv.data import Text, load_text
from quantkv.errors import QuantKVError
from quantkv.instruments.arguments import distinct, list_of_counts, list_of_names, list_of_shares
from quantkv.instruments.windows import check_counts
from quantkv.measurements.generation.choosing import Choice
from quantkv.measurements.generation.prompts import PROMPTS
from quantkv.measurements.packed_arms import spec_of
from quantkv.measurements.quality.protocols import Protocol, make_protocol
from quantkv.measurements.retrieval.questions import DEPTHS, SAMPLES
from quantkv.measurements.retrieval.tasks import TAIL, task_names
from quantkv.rows.frames import Evaluation
from quantkv.rows.settings import LoadedText
from quantkv.sweep.given import Formats, labelled, measured

KINDS = ("quality", "speed", "memory")
Source = str | Text | dict[str, Any]


def evaluate(
    model: Any,
    tok: Any,
    formats: Formats,
    *,
    text: Source = "python-docs",
    contexts: Sequence[int],
    windows: int | None = None,
    score: int | None = None,
    prefill: str | None = None,
    protocol: str | Mapping[str, Any] | Protocol | None = None,
    scale_bf16: bool | None = None,
    seed: int = 0,
    kinds: Sequence[str] = ("quality",),
    batch: int = 1,
    rounds: int = 10,
    block: int = 8,
    threads: int | None = None,
) -> Evaluation:
    """Measure formats (names, specs, or functions `x -> x_hat`) on a loaded model at every context.

    `formats` may be a mapping when the names of tables matter. `protocol`, that of quality, is a preset's
    name or its settings: 8 windows of 128 scored tokens unless said otherwise. Kinds are quality, speed and
    memory; memory loads the model again in processes of its own, so it needs one that `load_model` loaded. An
    arm that fails gives a row with its reason and a warning.
    """
    kinds = list_of_names("kinds", kinds, KINDS)
    check_counts(batch=batch)
    changes = {"windows": windows, "score": score, "prefill": prefill, "scale_bf16": scale_bf16}
    settings = make_protocol(protocol, **changes)
    contexts = list_of_counts("contexts", contexts)
    settings.contexts(contexts, alone=kinds == ["quality"])
    if "memory" in kinds and not hasattr(model, "_quantkv_source"):
        raise QuantKVError("memory needs a model that quantkv.load_model loaded: a worker must load it again")
    sections = {
        "quality": {"text": LoadedText.of(load_text(text)), "protocol": settings.row()},
        "speed": {"rounds": rounds, "block": block, "threads": threads},
        "memory": {},
    }
    asked = {kind: sections[kind] for kind in kinds}
    axes: dict[str, Any] = {"contexts": contexts, "batch_sizes": batch, "seeds": seed}
    return measured(model, tok, labelled(formats), threads=threads, **axes, **asked)


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
    check_counts(samples=samples)
    check_counts(0, tail=tail)
    asked = {
        "tasks": task_names() if tasks is None else list_of_names("tasks", tasks, task_names()),
        "depths": list_of_shares("depths", depths),
        "samples": samples,
        "tail": tail,
        "text": LoadedText.of(load_text(text)),
    }
    contexts = list_of_counts("lengths", lengths)
    return measured(model, tok, _packed(formats), contexts=contexts, seeds=seed, retrieval=asked)


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
    chance = {"temperature": temperature, "top_p": top_p}
    modes = distinct("modes", modes, "['greedy', 'sample']")
    for mode in modes:
        Choice(mode=mode, seed=seed, **chance)
    check_counts(tokens=tokens, prompts=prompts)
    asked = {"mode": modes, "tokens": tokens, "prompts": prompts, "text": LoadedText.of(load_text(text))}
    contexts = list_of_counts("contexts", contexts)
    return measured(model, tok, _packed(formats), contexts=contexts, seeds=seed, generation=asked | chance)


def _packed(formats: Formats) -> dict[str, Any]:
    """Formats by their labels, each a packed cache of ours."""
    return {label: spec_of(label, given) for label, given in labelled(formats).items()}
