"""Quality by offset in the scored span: does a format lose more the longer decoding goes on?"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkv.instruments.divergence import TokenScores
from quantkv.instruments.statistics import ratio, window_interval

BINS = 8


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
