"""From per-token scores to the quality section of a row, and what a reader of it must not miss."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from quantkv.instruments.divergence import TokenScores
from quantkv.instruments.statistics import percentile_99, ratio, window_interval
from quantkv.measurements.checks import beyond_range, few_packed
from quantkv.measurements.quality.protocols import Protocol
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import DEFAULT_FLUSH

BINS = 8
"""Of offsets in the scored span: does a format lose more the longer decoding goes on?"""
LARGE_KL = 0.1
LOW_TOP1 = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """Bits per value on full pages, in a cache of C tokens, in that with its exact tokens counted at 16 bits,
    and averaged over the scored lengths C, C + 1, ..."""

    bits_packed: float | None = None
    bits_cache: float | None = None
    bits_cache_16: float | None = None
    bits_cache_mean: float | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality(Bits):
    """The quality section of a row. NLL and KL in nats per token; intervals are None below 8 windows.

    `windows` holds the sums of each window, `positions` the means of runs of offsets in the scored span.
    `floor_path_kl` is the KL of the reference to stock attention, `scale_bf16_kl` that of the same model in
    bfloat16 to the reference; None where not measured.
    """

    nll: float
    nll_ref: float
    perplexity: float
    perplexity_ref: float
    delta_nll: float
    delta_nll_low: float | None
    delta_nll_high: float | None
    ppl_ratio: float
    kl_mean: float
    kl_low: float | None
    kl_high: float | None
    kl_median: float
    kl_max: float
    kl_p99: float | None
    top1_agreement: float
    top5_agreement: float
    packed_read_fraction: float | None
    floor_path_kl: float | None
    scale_bf16_kl: float | None
    tokens_scored: int
    windows: list[dict]
    positions: list[dict]
    flags: list[str]

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(slots=True)
class Tally:
    """Per-token scores of one arm, kept window by window."""

    scores: list[TokenScores] = field(default_factory=list)
    starts: list[int | None] = field(default_factory=list)
    packed_reads: list[float | None] = field(default_factory=list)
    identical: bool = True

    def add(
        self, scores: TokenScores, *, start: int | None, packed_read: float | None, identical: bool
    ) -> None:
        self.scores.append(scores)
        self.starts.append(start)
        self.packed_reads.append(packed_read)
        self.identical &= identical

    def tokens(self) -> dict[str, np.ndarray]:
        """Per-token arrays over all windows, for a sidecar file."""
        columns = {
            f.name: torch.cat([getattr(s, f.name) for s in self.scores]).numpy() for f in fields(TokenScores)
        }
        return columns | {"window": np.repeat(np.arange(len(self.scores)), [len(s) for s in self.scores])}

    def windows(self) -> list[dict]:
        return [_window_sums(start, s) for start, s in zip(self.starts, self.scores, strict=True)]


def _window_sums(start: int | None, scores: TokenScores) -> dict:
    return {
        "start": start,
        "n": len(scores),
        "sum_nll": float(scores.nll.sum()),
        "sum_nll_ref": float(scores.nll_ref.sum()),
        "sum_kl": float(scores.kl.sum()),
        "n_top1": int(scores.top1.sum()),
        "sum_top5": float(scores.top5.sum()),
    }


NO_BITS = Bits()


def summarise(
    tally: Tally,
    *,
    bits: Bits = NO_BITS,
    floor_path_kl: float | None = None,
    scale_bf16_kl: float | None = None,
    seed: int = 0,
) -> Quality:
    """All estimates over the windows of a tally: sums over sums, intervals from whole windows."""
    windows = tally.windows()
    column = {name: np.array([w[name] for w in windows], float) for name in windows[0] if name != "start"}
    n = column["n"]
    with np.errstate(invalid="ignore"):  # both infinite: the gap is unknown, and null in a row
        gaps = column["sum_nll"] - column["sum_nll_ref"]
    nll, nll_ref, delta = (ratio(sums, n) for sums in (column["sum_nll"], column["sum_nll_ref"], gaps))
    delta_low, delta_high = window_interval(gaps, n, seed=seed)
    kl_low, kl_high = window_interval(column["sum_kl"], n, seed=seed)
    kl = tally.tokens()["kl"]
    told = [share for share in tally.packed_reads if share is not None]
    packed_read = ratio(np.array(told) * n, n) if len(told) == len(windows) else None
    return Quality(
        nll=nll,
        nll_ref=nll_ref,
        perplexity=_exp(nll),
        perplexity_ref=_exp(nll_ref),
        delta_nll=delta,
        delta_nll_low=delta_low,
        delta_nll_high=delta_high,
        ppl_ratio=_exp(delta),
        kl_mean=ratio(column["sum_kl"], n),
        kl_low=kl_low,
        kl_high=kl_high,
        kl_median=float(np.median(kl)),
        kl_max=float(np.max(kl)),
        kl_p99=percentile_99(kl),
        top1_agreement=ratio(column["n_top1"], n),
        top5_agreement=ratio(column["sum_top5"], n),
        packed_read_fraction=packed_read,
        floor_path_kl=floor_path_kl,
        scale_bf16_kl=scale_bf16_kl,
        tokens_scored=int(n.sum()),
        windows=windows,
        positions=by_position(tally.scores, seed=seed),
        flags=[],
        **asdict(bits),
    )


def _exp(nats: float) -> float:
    return math.inf if nats > 700 else math.exp(nats)


def by_position(scores: Sequence[TokenScores], *, seed: int = 0) -> list[dict[str, Any]]:
    """Mean KL and ΔNLL (nats) of offsets `[start, stop)` after the context, in up to 8 equal bins.

    A window shorter than the others counts in the bins it reaches; intervals are over whole windows.
    """
    longest = max(len(window) for window in scores)
    count = min(BINS, longest)
    edges = [longest * i // count for i in range(count + 1)]
    return [_bin(scores, start, stop, seed) for start, stop in itertools.pairwise(edges)]


def _bin(scores: Sequence[TokenScores], start: int, stop: int, seed: int) -> dict[str, Any]:
    reaching = [window for window in scores if len(window) > start]
    n = np.array([min(len(window), stop) - start for window in reaching])
    kl = np.array([float(window.kl[start:stop].sum()) for window in reaching])
    gaps = np.array([float((w.nll[start:stop] - w.nll_ref[start:stop]).sum()) for w in reaching])
    found: dict[str, Any] = {"start": start, "stop": stop, "n": int(n.sum())}
    for name, sums in (("kl", kl), ("delta_nll", gaps)):
        low, high = window_interval(sums, n, seed=seed)
        mean = "kl_mean" if name == "kl" else name
        found |= {mean: ratio(sums, n), f"{name}_low": low, f"{name}_high": high}
    return found


def flagged(quality: Quality, spec: Any, protocol: Protocol, saturated: int | None = None) -> Quality:
    """The quality with everything a reader must not miss in its flags; `saturated` counts stored numbers."""
    flags = [*_measurement_flags(quality, spec, protocol), *_damage_flags(quality), *beyond_range(saturated)]
    return replace(quality, flags=[*quality.flags, *flags])


def _measurement_flags(quality: Quality, spec: Any, protocol: Protocol) -> list[str]:
    share = quality.packed_read_fraction
    flags = [] if share is None else few_packed(share)
    score = quality.windows[0]["n"]
    if protocol.whole is None:
        uneven = [flush for flush in _flushes(spec) if score % flush]
        flags += [f"{score} scored tokens are no multiple of the flush of {flush}" for flush in uneven]
    lossy = isinstance(spec, CacheSpec) and not spec.is_raw
    if lossy and quality.floor_path_kl is not None and quality.kl_mean < quality.floor_path_kl:
        flags.append("KL below the floor of the arithmetic")
    return flags


def _flushes(spec: Any) -> list[int]:
    if isinstance(spec, CacheSpec):
        return sorted({spec.key.flush, spec.value.flush})
    return [DEFAULT_FLUSH] if callable(spec) else []


def _damage_flags(quality: Quality) -> list[str]:
    if not all(map(math.isfinite, (quality.nll, quality.kl_mean))):
        return ["NLL or KL is not finite with this format"]
    flags = [f"KL above {LARGE_KL} nats per token"] if quality.kl_mean > LARGE_KL else []
    return flags + ([f"top-1 agreement below {LOW_TOP1:.0%}"] if quality.top1_agreement < LOW_TOP1 else [])
