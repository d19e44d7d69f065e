"""What keys and values are like: channel means and magnitudes, outlier channels, heavy tails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

BINS = 128
"""Rows of a magnitude map: longer texts show the largest magnitude of several tokens in each."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Per channel, each `[H, D]`: mean, root mean square and largest magnitude over tokens."""

    mean: NDArray
    rms: NDArray
    absmax: NDArray


def channel_statistics(x: Tensor) -> ChannelStatistics:
    """Statistics of `[H, T, D]` over its tokens, in float64."""
    x = x.double()
    parts = (x.mean(1), x.square().mean(1).sqrt(), x.abs().amax(1))
    return ChannelStatistics(*(part.cpu().numpy() for part in parts))


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """Per head, each `[H]`: how the hottest channel stands out of its head, and how heavy the tails are."""

    outlier_ratio: NDArray
    """Root mean square of the hottest channel over that of the median channel."""
    hot_channel: NDArray
    hot_offset: NDArray
    """Share of the hottest channel's power that is its constant mean: 1 is a constant, 0 has no mean."""
    absmax: NDArray
    kurtosis: NDArray
    """Excess kurtosis over tokens and channels: 0 for a Gaussian, positive for heavier tails."""


def head_statistics(x: Tensor, channels: ChannelStatistics) -> HeadStatistics:
    """Statistics of `[H, T, D]`, whose channel statistics are given."""
    from scipy.stats import kurtosis

    median = np.median(channels.rms, axis=1)
    hot = channels.rms.argmax(axis=1)
    heads = np.arange(len(hot))
    size = channels.rms[heads, hot]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, offset = size / median, (channels.mean[heads, hot] / size) ** 2
    values = x.double().flatten(1).cpu().numpy()
    return HeadStatistics(ratio, hot, offset, channels.absmax.max(axis=1), kurtosis(values, axis=1))


def magnitude_map(x: Tensor) -> NDArray:
    """Magnitudes of `[H, T, D]` as `[rows, H · D]`, at most `BINS` rows: each holds the largest of its
    tokens."""
    heads, length, width = x.shape
    step = -(-length // BINS)
    flat = x.abs().float().transpose(0, 1).reshape(length, heads * width)
    return torch.stack([part.amax(0) for part in flat.split(step)]).cpu().numpy()


def shown_layers(statistics: pd.DataFrame) -> list[int]:
    """The first and the last layer, and those with the hottest key and the hottest value channel."""
    layers = statistics["layer"]
    hottest = statistics.loc[statistics.groupby("tensor")["outlier_ratio"].idxmax(), "layer"]
    return sorted({int(layers.min()), int(layers.max()), *map(int, hottest)})
