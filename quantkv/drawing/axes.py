"""Axes as a paper prints them: real contexts as ticks, plain numbers where they fit, nothing cut off.

Ticks are set by hand where matplotlib's locators choose round numbers instead of what was measured, and
around 1: its symlog and asinh scales stand around 0 and label no end of the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatterSciNotation,
    LogLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)

from quantkv.wording.numbers import tokens

TICK_SPACING_POINTS = 4.5
SHORT_SPAN, LONG_SPAN = 2.2, 4.0
"""Decades."""
LABEL_SHARE = 0.08


def context_axis(ax: Axes, contexts: Sequence[int], share: float = 0.5) -> None:
    """Logarithmic, with a tick at every context that was measured; labels that would collide are left out,
    where the axis has this share of the figure's width."""
    ax.set_xscale("log", base=2)
    octaves = math.log2(contexts[-1] / contexts[0])
    pad = 2.0 ** max(0.3, 0.07 * octaves)
    ax.set_xlim(contexts[0] / pad, contexts[-1] * pad)
    ax.xaxis.set_major_locator(FixedLocator(list(contexts)))
    ax.xaxis.set_minor_locator(NullLocator())
    figure: Any = ax.get_figure()
    labels = _labels_that_fit(contexts, width=72 * share * figure.get_figwidth())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: labels.get(round(value), "")))
    ax.set_xlabel("context (tokens)")


def _labels_that_fit(contexts: Sequence[int], width: float) -> dict[int, str]:
    """From the longest context down, each label needs its own length beside the one before."""
    scale = width / max(1.0, math.log2(contexts[-1] / contexts[0]))
    labels: dict[int, str] = {}
    taken = math.inf
    for context in reversed(contexts):
        text = tokens(context)
        middle, half = scale * math.log2(context), TICK_SPACING_POINTS * (len(text) + 1) / 2
        if middle + half <= taken:
            labels[context], taken = text, middle - half
    return labels


def log_axis(ax: Axes, values: Iterable[Any]) -> None:
    """A log axis around the positive values: 1-2-5 ticks over a short span, powers of ten over a long one."""
    positive = [float(value) for value in values if np.isfinite(value) and value > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    pad = max(0.08, 0.06 * (high - low))
    ax.set_yscale("log")
    ax.set_ylim(10 ** (low - pad), 10 ** (high + pad))
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high - low < SHORT_SPAN else (1,), numticks=20))
    ax.yaxis.set_minor_formatter(NullFormatter())
    if not (short := high - low < LONG_SPAN):
        ax.yaxis.set_minor_locator(NullLocator())
    plain = short and min(positive) >= 1e-3 and max(positive) < 1e5
    powers = LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}") if plain else powers)


def ratio_axis(ax: Axes, name: str, values: Iterable[float], ends: Iterable[float]) -> None:
    """Linear near 1; logarithmic in the distance from 1, which the label then says, where the largest value
    would flatten all others."""
    distances = sorted(abs(value - 1) for value in values) or [0.0]
    largest, middle = distances[-1], distances[len(distances) // 2]
    finite = [1.0, *ends]
    if largest <= max(12 * middle, 1e-3):
        pad = 0.08 * max(max(finite) - min(finite), 1e-4)
        ax.set_ylim(min(finite) - pad, max(finite) + pad)
        ax.ticklabel_format(axis="y", useOffset=False)
        ax.set_ylabel(name)
        return
    linear = 10.0 ** min(-2, max(-3, math.floor(math.log10(max(middle, 1e-9)))))
    _asinh_axis(ax, linear, min(finite), max(finite))
    ax.set_ylabel(f"{name}\n(symlog around 1)")


def _asinh_axis(ax: Axes, linear: float, low: float, high: float) -> None:
    """Linear as far as ``linear`` from 1, and logarithmic beyond."""

    def forward(value: Any) -> Any:
        return np.arcsinh((np.asarray(value) - 1) / linear)

    def inverse(value: Any) -> Any:
        return 1 + linear * np.sinh(value)

    ax.set_yscale("function", functions=(forward, inverse))
    bottom, top = forward(low), forward(high)
    pad = 0.07 * (top - bottom)
    ax.set_ylim(inverse(bottom - pad), inverse(top + pad))
    _ticks_around_1(ax, linear, lambda one, other: np.abs(forward(one) - forward(other)) / (top - bottom))


def _ticks_around_1(ax: Axes, linear: float, apart: Callable[[Any, Any], Any]) -> None:
    """Labels at decades of the distance from 1, and at both ends where there is room for one more."""
    steps = [linear * 10.0**power for power in range(8)]
    decades = _both_sides(steps, ax.get_ylim())
    between = _both_sides([factor * step for step in steps for factor in range(2, 10)], ax.get_ylim())
    outside = [tick for tick in (between[0], between[-1]) if not decades[0] <= tick <= decades[-1]]
    ends = [tick for tick in outside if apart(tick, decades).min() > LABEL_SHARE]
    ax.yaxis.set_major_locator(FixedLocator(sorted([*decades, *ends])))
    ax.yaxis.set_minor_locator(FixedLocator(between))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(value, 6):g}"))


def _both_sides(distances: Iterable[float], limits: tuple[float, float]) -> list[float]:
    ticks = sorted({1.0, *(1 + side * distance for distance in distances for side in (-1, 1))})
    return [tick for tick in ticks if limits[0] <= tick <= limits[1]]
