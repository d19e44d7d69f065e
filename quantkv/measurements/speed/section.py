"""From step times to the speed section of a result row: pure arithmetic, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantkv.instruments.statistics import median_interval
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
    steps, steps_baseline = lane.steps_ms, baseline.steps_ms
    prefill, prefill_baseline = _median(lane.prefill), _median(baseline.prefill)
    section: dict[str, Any] = {
        "prefill_tokens_per_s": batch * context / prefill if prefill else None,
        "time_to_first_token_ms": _scaled(_median(lane.first_token), 1000),
        "decode_ms_median": _median(steps),
        "decode_ms_p10": _quantile(steps, 0.1),
        "decode_ms_p90": _quantile(steps, 0.9),
        "decode_tokens_per_s": 1000 * batch / float(np.median(steps)) if len(steps) > 1 else None,
        **_ratios(lane, baseline),
        "baseline_ms_median": _median(steps_baseline),
        "prefill_ratio_to_baseline": prefill / prefill_baseline if prefill and prefill_baseline else None,
        "first_step_ratio": lane.first_step_ratio,
        "bandwidth_gb_s": (bandwidth.before + bandwidth.after) / 2,
        "bandwidth_drift": bandwidth.drift,
        "top1_agreement_64": top1_agreement(lane.predicted, baseline.predicted),
        "steps": len(steps),
    }
    return section | {"flags": _flags(section, len(lane.rounds), engine, fill)}


def _ratios(lane: Timings, baseline: Timings) -> dict[str, float | None]:
    """Arm over baseline, round by round: the median, its 95 % interval, and the 10th and 90th percentile."""
    pairs = zip(lane.rounds_ms, baseline.rounds_ms)
    ratios = [arm / other for arm, other in pairs if arm is not None and other]
    low, high = median_interval(ratios)
    return {
        "ratio_to_baseline": _median(ratios),
        "ratio_low": low,
        "ratio_high": high,
        "ratio_p10": _quantile(ratios, 0.1),
        "ratio_p90": _quantile(ratios, 0.9),
    }


def top1_agreement(predicted: list[list[int]], reference: list[list[int]]) -> float | None:
    """Share of equal predictions among the first 64 decoded tokens; all lanes were fed the same tokens."""
    pairs = [pair for row, row_ref in zip(predicted, reference) for pair in zip(row, row_ref)][
        :AGREEMENT_TOKENS
    ]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None


def _flags(section: dict[str, Any], rounds: int, engine: str, fill: str) -> list[str]:
    flags = [f"{engine} engine: no speed claim"] if engine == "reference" else []
    flags += [f"only {rounds} rounds" if rounds != 1 else "only 1 round"] if rounds < MIN_ROUNDS else []
    drift, first = section["bandwidth_drift"], section["first_step_ratio"]
    flags += [f"memory bandwidth drifted by {drift:+.0%}"] if abs(drift) > MAX_DRIFT else []
    flags += [f"first step took {first:.1f} times the median"] if first and first > MAX_FIRST_STEP else []
    agreement = section["top1_agreement_64"]
    bad = fill == "prefill" and agreement is not None and agreement < LOW_TOP1
    return flags + ([f"top-1 agreement with the baseline only {agreement:.0%}"] if bad else [])


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _quantile(values: list[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
