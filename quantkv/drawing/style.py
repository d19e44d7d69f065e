"""One fixed look per cache format, so that a reader who has seen one figure can read all of them.

Hue tells the family (greys: floats, wine: fp8, blues: 8 bits, oranges: 4 bits, green and pink: KIVI, olive:
mixed, violet: all others), the marker of a preset what shares a scale (circle: token and head, square:
channel, hexagon: a run of channels). Other formats have a shade of their family and a marker of their own.
Squares are larger than circles, so that a circle of the same bits on top of one leaves its corners visible.
The colours are those of Okabe and Ito and of Paul Tol, which stay apart for colour-blind readers.
Nothing here needs matplotlib: the tables use the same order of formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quantkv.drawing.families import family, shade

WIDTHS = {"one-column": 3.3, "two-column": 6.9}
BASELINE = "DynamicCache"
PAPER = "#FFFFFF"
GREY = "#555555"
"""Of lines and marks of no format."""
FONT_SIZE = 7.0
"""Points."""
SHARES, MAGNITUDES = "cividis", "magma"
"""Colour maps of heat maps: shares, where light is good, and magnitudes and errors, where light is large."""

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "text.usetex": False,
    "font.size": FONT_SIZE,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "legend.fontsize": FONT_SIZE,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#E3E3E3",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.size": 1.5,
    "ytick.minor.width": 0.4,
    "xtick.minor.bottom": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.0,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "quantkv",
}


@dataclass(frozen=True)
class Style:
    color: str
    marker: Any
    linestyle: Any = "-"
    size: float = 4.0


DASHED: Any = (0, (4, 1.6))
DOTTED: Any = (0, (1.2, 1.2))
DASHDOT: Any = (0, (4, 1.4, 1.2, 1.4))

STYLES: dict[str, Style] = {
    BASELINE: Style("#000000", "D", DASHED, 3.4),
    "fp32": Style("#4D4D4D", "<"),
    "exact": Style("#8C8C8C", ">"),
    "bf16": Style("#A6A6A6", "p", size=4.4),
    "fp16": Style("#737373", "d"),
    "fp8-e4m3": Style("#882255", "X", size=4.4),
    "int8-channel": Style("#0072B2", "s", size=4.8),
    "int8-head": Style("#56B4E9", "o"),
    "int8-g32": Style("#1B3A6B", "h", size=4.4),
    "k8v4": Style("#999933", "P", size=4.6),
    "int4-channel": Style("#D55E00", "s", size=4.8),
    "int4-head": Style("#E69F00", "o"),
    "int4-g32": Style("#8C4A00", "h", size=4.4),
    "kivi-4": Style("#009E73", "^", size=4.4),
    "kivi-2": Style("#CC79A7", "v", size=4.4),
}
CUSTOM_LINES = (DASHED, DOTTED, DASHDOT)
CUSTOM_MARKERS: tuple[tuple[Any, float], ...] = (
    ("d", 4.4), ("*", 6.2), ("p", 4.8), ("<", 4.2), (">", 4.2), ((4, 1, 0), 6.0), ("^", 4.4), ("P", 4.6),
    ("D", 3.4), ("v", 4.4), ("X", 4.4), ((3, 1, 0), 6.0), ("s", 4.0), ("o", 4.0), ("h", 4.6),
)  # fmt: skip
"""In turn, those of the same family last."""


def base_of(label: str) -> str:
    """The preset that a label names, under whatever policy; empty where it names none."""
    return label if label in STYLES else next((name for name in STYLES if label.startswith(name + "+")), "")


def rank(label: str, bits: float | None = None) -> tuple[float, str]:
    """Sort key: the baseline, known formats from many bits to few, then the others by their bits and name."""
    if base := base_of(label):
        return float(list(STYLES).index(base)), label
    return len(STYLES) + (32 - bits if bits is not None and bits == bits else 64), label


def styles_for(labels: Iterable[str], specs: Mapping[str, str] | None = None) -> dict[str, Style]:
    """A style for every label: a preset's fixed one, else a shade of its family with its own marker and line.

    ``specs`` (label to spec) tells the family where the name does not.
    """
    ordered = sorted(dict.fromkeys(labels), key=rank)
    chosen = dict(STYLES)
    families = {name: family(name) for name in STYLES}
    for index, label in enumerate(label for label in ordered if label not in STYLES):
        families[label] = family(base_of(label) or (specs or {}).get(label, label))
        akin = [style.marker for other, style in chosen.items() if families[other] == families[label]]
        used = [style.marker for other, style in chosen.items() if other not in STYLES]
        marker, size = min(CUSTOM_MARKERS, key=lambda own: (used.count(own[0]), own[0] in akin))
        color = shade(families[label], [PAPER, *(style.color for style in chosen.values())])
        line = CUSTOM_LINES[(index + index // len(CUSTOM_MARKERS)) % len(CUSTOM_LINES)]
        chosen[label] = Style(color, marker, line, size)
    return {label: chosen[label] for label in ordered}
