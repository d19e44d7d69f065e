"""From step times to the speed section of a result row: pure arithmetic, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkv.instruments.statistics import ratios, spread
from quantkv.instruments.verdict import MAX_DRIFT

MIN_ROUNDS = 10
MAX_FIRST_STEP = 1.5
AGREEMENT_TOKENS = 64
LOW_TOP1 = 0.8


@dataclass(slots=True)
class Timings:
    """Seconds of one lane. The first step of a round refills processor caches and is kept apart."""

    prefill: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)
    predicted: list[list[int]] = field(default_factory=list)

    @property
    def steps_ms(self) -> list[float]:
        return [1000 * seconds for steps in self.rounds for seconds in steps[1:]]

    @property
    def rounds_ms(self) -> list[float | None]:
        return [1000 * float(np.median(steps[1:])) if len(steps) > 1 else None for steps in self.rounds]

    @property
    def first_step_ratio(self) -> float | None:
        """The very first step after the warm-up against the median one."""
        return 1000 * self.rounds[0][0] / float(np.median(self.steps_ms)) if self.steps_ms else None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Copy speed in GB/s before and after the race."""

    before: float
    after: float

    @property
    def drift(self) -> float:
        return self.after / self.before - 1


def speed_section(
    lane: Timings,
    baseline: Timings,
    *,
    context: int,
    batch: int,
    bandwidth: Bandwidth,
    engine: str,
    fill: str,
) -> dict[str, Any]:
    ms, ratio = spread(lane.steps_ms), ratios(lane.rounds_ms, baseline.rounds_ms)
    prefill, prefill_baseline = spread(lane.prefill)["median"], spread(baseline.prefill)["median"]
    first_token = spread(lane.first_token)["median"]
    section: dict[str, Any] = {
        "prefill_tokens_per_s": batch * context / prefill if prefill else None,
        "time_to_first_token_ms": None if first_token is None else first_token * 1000,
        "decode_ms_median": ms["median"],
        "decode_ms_p10": ms["p10"],
        "decode_ms_p90": ms["p90"],
        "decode_tokens_per_s": 1000 * batch / ms["median"]
        if ms["median"] and len(lane.steps_ms) > 1
        else None,
        "ratio_to_baseline": ratio["median"],
        "ratio_low": ratio["low"],
        "ratio_high": ratio["high"],
        "ratio_p10": ratio["p10"],
        "ratio_p90": ratio["p90"],
        "baseline_ms_median": spread(baseline.steps_ms)["median"],
        "prefill_ratio_to_baseline": prefill / prefill_baseline if prefill and prefill_baseline else None,
        "first_step_ratio": lane.first_step_ratio,
        "bandwidth_gb_s": (bandwidth.before + bandwidth.after) / 2,
        "bandwidth_drift": bandwidth.drift,
        "top1_agreement_64": top1_agreement(lane.predicted, baseline.predicted),
        "steps": len(lane.steps_ms),
    }
    return section | {"flags": list(_flags(section, len(lane.rounds), engine, fill))}


def top1_agreement(predicted: list[list[int]], reference: list[list[int]]) -> float | None:
    """Share of equal predictions among the first 64 decoded tokens; all lanes were fed the same tokens."""
    pairs = [pair for row, row_ref in zip(predicted, reference) for pair in zip(row, row_ref)][
        :AGREEMENT_TOKENS
    ]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def _flags(section: dict[str, Any], rounds: int, engine: str, fill: str) -> Iterator[str]:
    drift, first, agreement = (
        section[name] for name in ("bandwidth_drift", "first_step_ratio", "top1_agreement_64")
    )
    if engine == "reference":
        yield f"{engine} engine: no speed claim"
    if rounds < MIN_ROUNDS:
        yield "only 1 round" if rounds == 1 else f"only {rounds} rounds"
    if abs(drift) > MAX_DRIFT:
        yield f"memory bandwidth drifted by {drift:+.0%}"
    if first and first > MAX_FIRST_STEP:
        yield f"first step took {first:.1f} times the median"
    if fill == "prefill" and agreement is not None and agreement < LOW_TOP1:
        yield f"top-1 agreement with the baseline only {agreement:.0%}"
