"""What the decode-exact pass costs: a whole sequence simulated, beside the plain forward pass of the model.

Nothing is prefilled, so every query reads packed history: the dearest case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantkv.bench.machine import Probe
from quantkv.bench.report import Report, Row, make_report, timed_row
from quantkv.bench.rounds import Arm, Progress, quiet, refused, take_turns
from quantkv.bench.settings import SimulateSettings
from quantkv.bench.work import ModelWork
from quantkv.decode_exact.simulate import simulate
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.instruments.statistics import ratios
from quantkv.measurements.memory import peaks
from quantkv.spec.specs import CacheSpec, parse_spec

PLAIN = "plain, sdpa"
MAX_RATIO = 2.5
"""A simulated pass that takes more than so many times the plain one is flagged."""


def bench_simulate(settings: SimulateSettings, progress: Progress = quiet) -> Report:
    """Time every format at every length; the report as JSON can hold it."""
    from quantkv.models import load_model

    settings.check()
    specs = {text: parse_spec(text) for text in settings.formats}
    model, _ = load_model(settings.model, dtype=settings.dtype)
    hf.check_length(model, max(settings.tokens))
    probe, rows = Probe([settings.threads]), []
    with hf.attention(model, "sdpa"):
        for tokens in settings.tokens:
            arms = timed_arms(model, tokens, specs, settings, progress)
            rows += [timed_row(arm) | {"time_to_plain": ratios(arm.seconds, arms[0].seconds)} for arm in arms]
    return make_report("simulate", settings, probe, rows, flags_of(rows))


def timed_arms(
    model: Any, tokens: int, specs: dict[str, CacheSpec], settings: SimulateSettings, progress: Progress
) -> list[Arm]:
    """The plain pass and every format over the same `tokens`, run in turns; then each once more for its
    memory. Bytes are the weights', read once; all passes do the arithmetic of a prefill."""
    noise = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(model.config.get_text_config().vocab_size, (1, tokens), generator=noise)
    runs: dict[str, Callable[[], Tensor]] = {PLAIN: partial(hf.forward, model, ids)}
    runs |= {text: partial(simulated, model, spec, ids) for text, spec in specs.items()}
    work = ModelWork.of(model)
    arms = [
        Arm(name, run, settings.threads, work.weight_bytes, work.prefill(tokens))
        for name, run in runs.items()
    ]
    with refused(f"a pass over {tokens} tokens"):
        take_turns(arms, settings, lambda what: progress(f"{tokens} tokens, {what}"))
        for arm in arms:
            progress(f"{tokens} tokens, memory of {arm.name}")
            scratch, name = scratch_bytes(arm, model.device), None if arm.name == PLAIN else arm.name
            arm.about = {"tokens": tokens, "format": name, "scratch_bytes": scratch}
    return arms


def simulated(model: Any, spec: CacheSpec, ids: Tensor) -> Tensor:
    """Logits of the last position as decoding token by token gives them."""
    with simulate(model, spec):
        return hf.forward(model, ids)


def scratch_bytes(arm: Arm, device: torch.device) -> int | None:
    """Peak of resident memory (CUDA: of tensors) of one run over the level before it; None where this
    machine does not tell."""
    arm.output = None
    counter = peaks.counter(device)
    with torch.inference_mode(), timing.threads(arm.threads):
        counter.start()
        arm.run()
        return counter.peak()


def flags_of(rows: Sequence[Row]) -> list[str]:
    """Passes that cost more than they should, and memory that nothing told."""
    slow = [row for row in rows if row["time_to_plain"]["median"] > MAX_RATIO]
    flags = [
        f"{row['name']} at {row['tokens']} tokens takes {row['time_to_plain']['median']:.1f} plain passes"
        for row in slow
    ]
    untold = any(row["scratch_bytes"] is None for row in rows)
    return flags + (["this machine does not tell peaks of memory"] if untold else [])
