"""What the decode-exact pass costs: a whole sequence simulated, beside the plain forward pass of the model.

Nothing is prefilled, so every query reads packed history: the dearest case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantkv.bench.machine import MachineLimits, Probe
from quantkv.bench.report import make_report, parse_formats
from quantkv.bench.rounds import Arm, Progress, quiet, refused, take_turns, timed_row
from quantkv.bench.settings import SimulateSettings
from quantkv.bench.work import ModelWork
from quantkv.decode_exact.simulate import simulate
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.instruments.statistics import ratios
from quantkv.measurements.memory import peaks
from quantkv.spec.specs import CacheSpec

PLAIN = "plain, sdpa"
MAX_RATIO = 2.5
"""A simulated pass that takes more than so many times the plain one is flagged."""


@dataclass(kw_only=True)
class PassArm(Arm):
    """One pass over the sequence; `format` None for the plain one."""

    tokens: int
    format: str | None
    scratch_bytes: int | None = None

    def about(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "format": self.format, "scratch_bytes": self.scratch_bytes}


def bench_simulate(settings: SimulateSettings, progress: Progress = quiet) -> dict[str, Any]:
    """Time every format at every length; the report as JSON can hold it."""
    from quantkv.models import load_model

    settings.check()
    specs = parse_formats(settings.formats)
    model, _ = load_model(settings.model, dtype=settings.dtype)
    hf.check_length(model, max(settings.tokens))
    probe = Probe([settings.threads])
    with hf.attention(model, "sdpa"):
        measured = [arms_at(model, n, specs, settings, progress) for n in settings.tokens]
    limits = probe.limits()
    rows = [row for arms in measured for row in rows_of(arms, limits)]
    return make_report("simulate", settings, probe, limits, rows, flags_of(rows))


def arms_at(
    model: Any, tokens: int, specs: dict[str, CacheSpec], settings: SimulateSettings, progress: Progress
) -> list[PassArm]:
    """The plain pass and every format over the same `tokens`, run in turns; then each once more for its
    memory."""
    noise = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(model.config.get_text_config().vocab_size, (1, tokens), generator=noise)
    runs: dict[str, Callable[[], Tensor]] = {PLAIN: partial(hf.forward, model, ids)}
    runs |= {text: partial(simulated, model, spec, ids) for text, spec in specs.items()}
    arms = [_arm(name, run, model, tokens, settings.threads) for name, run in runs.items()]
    with refused(f"a pass over {tokens} tokens"):
        take_turns(
            arms,
            settings.rounds,
            seed=settings.seed,
            progress=lambda what: progress(f"{tokens} tokens, {what}"),
        )
        for arm in arms:
            progress(f"{tokens} tokens, memory of {arm.name}")
            arm.scratch_bytes = scratch_bytes(arm, model.device)
    return arms


def _arm(name: str, run: Callable[[], Tensor], model: Any, tokens: int, threads: int) -> PassArm:
    """Its bytes are the weights', read once; both passes do the arithmetic of a prefill."""
    work = ModelWork.of(model)
    return PassArm(
        name,
        run,
        threads=threads,
        touched=work.weight_bytes,
        multiply_adds=work.prefill(tokens),
        tokens=tokens,
        format=None if name == PLAIN else name,
    )


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


def rows_of(arms: Sequence[PassArm], limits: MachineLimits) -> list[dict[str, Any]]:
    plain = arms[0]
    return [timed_row(arm, limits) | {"time_to_plain": ratios(arm.seconds, plain.seconds)} for arm in arms]


def flags_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Passes that cost more than they should, and memory that nothing told."""
    slow = [row for row in rows if row["time_to_plain"]["median"] > MAX_RATIO]
    flags = [
        f"{row['name']} at {row['tokens']} tokens takes {row['time_to_plain']['median']:.1f} plain passes"
        for row in slow
    ]
    untold = any(row["scratch_bytes"] is None for row in rows)
    return flags + (["this machine does not tell peaks of memory"] if untold else [])
