"""`evaluate`, `retrieval` and `long_generation`: kinds of a sweep on a model that is loaded already, as rows
that are those of any sweep."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quantkv.arms.arm import BASELINE, Format, format_name, parse_format
from quantkv.arms.formats import GivenFormat
from quantkv.data import Text, load_text
from quantkv.errors import QuantKVError
from quantkv.instruments import timing
from quantkv.instruments.arguments import distinct, list_of_counts, list_of_names, list_of_shares
from quantkv.instruments.windows import check_counts
from quantkv.measurements.checks import spec_of
from quantkv.measurements.generation.choosing import Choice
from quantkv.measurements.generation.settings import PROMPTS
from quantkv.measurements.kind import Result
from quantkv.measurements.quality.protocols import Protocol, make_protocol
from quantkv.measurements.retrieval.haystack import TAIL
from quantkv.measurements.retrieval.tasks import DEPTHS, SAMPLES, task_names
from quantkv.models import model_identity
from quantkv.models.names import is_built_in
from quantkv.rows.cell import Cell
from quantkv.rows.files import Row
from quantkv.rows.frames import Evaluation
from quantkv.rows.settings import LoadedText
from quantkv.sweep.config import validate
from quantkv.sweep.grid import blocks, distinct_cells
from quantkv.sweep.local import LoadedModel, texts

KINDS = ("quality", "speed", "memory")
Source = str | Text | dict[str, Any]
Formats = Iterable[Format] | Mapping[str, Format]


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
    return _measured(model, tok, _labelled(formats), threads=threads, **axes, **asked)


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
    return _measured(model, tok, _packed(formats), contexts=contexts, seeds=seed, retrieval=asked)


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
    return _measured(model, tok, _packed(formats), contexts=contexts, seeds=seed, generation=asked | chance)


def _measured(
    model: Any, tok: Any, arms: Mapping[str, Format], *, threads: int | None = None, **axes: Any
) -> Evaluation:
    """The rows of formats by their labels; `axes` are other parts of a sweep file, sections of kinds too."""
    check_counts(0, seed=axes.get("seeds", 0))
    check_counts(threads=1 if threads is None else threads)
    identity = model_identity(model)
    dtype = str(model.dtype).removeprefix("torch.")
    name = str(identity["model"])
    revision = None if is_built_in(name) or name.lower().endswith(".gguf") else identity["revision"]
    entry = {"id": identity["model"], "revision": revision, "dtype": dtype}
    formats = [GivenFormat.of(label, arm) for label, arm in arms.items()]
    sweep = validate({"schema": 1, "models": entry, "formats": formats} | axes, where="evaluation")
    session = LoadedModel(model, tok, sweep.models[0], sweep, texts())
    with timing.threads(threads):
        kinds = [sweep.section(name).cells(sweep, sweep.models[0]) for name in sweep.kinds]
        cells = [cell for own in kinds for cell in distinct_cells(own) if cell.label in arms]
        return Evaluation(_rows(session, cells))


def _rows(session: LoadedModel, cells: Sequence[Cell]) -> list[Row]:
    keys = {id(cell): cell.key(session.facts(cell)) for cell in cells}
    rows: list[Row] = []

    def add(cell: Cell, result: Result) -> None:
        if result["status"] != "ok":
            failed = f"{cell.kind} of {cell.label} at {cell.context}: {result['reason']}"
            warnings.warn(failed, stacklevel=2)
        rows.append(session.row(cell, result, keys[id(cell)]))

    for block in blocks(cells):
        session.measure(block.cells, add, lambda what, done, total: None)
    return rows


def _labelled(formats: Iterable[Format] | Mapping[str, Format]) -> dict[str, Format]:
    """Formats by the name they carry in tables, wrong ones found before anything runs."""
    if isinstance(formats, Mapping):
        items = list(formats.items())
    else:
        listed = isinstance(formats, Iterable) and not isinstance(formats, str)
        items = [(format_name(given), given) for given in formats] if listed else []
    if not items:
        raise QuantKVError(f"formats must be a list, such as ['int4-head', 'kivi-2'], not {formats!r}")
    labels = [label for label, _ in items]
    if wrong := [label for label in labels if not isinstance(label, str) or not label]:
        raise QuantKVError(f"formats are called by words, not {wrong[0]!r}")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise QuantKVError(f"two formats are called {twice!r}; give a mapping of names to formats")
    arms = {label: parse_format(given) for label, given in items}
    if arms.get(BASELINE, BASELINE) != BASELINE:
        raise QuantKVError(f"{BASELINE!r} is the cache that others are held against: name this otherwise")
    return arms


def _packed(formats: Formats) -> dict[str, Any]:
    """Formats by their labels, each a packed cache of ours."""
    return {label: spec_of(label, given) for label, given in _labelled(formats).items()}
