"""One fixed look per cache format, so that a reader who has seen one figure can read all of them.

Hue tells the family (greys: floats, wine: fp8, blues: 8 bit, oranges: 4 bit, green and pink: KIVI, olive:
mixed), the marker what shares a scale (circle: token and head, square: channel, hexagon: a run of channels).
Squares are larger than circles, so that a circle of the same bits on top of one leaves its corners visible.
The colours are those of Okabe and Ito and of Paul Tol, which stay apart for colour-blind readers.
Nothing here needs matplotlib: the tables use the same order of formats.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

WIDTHS = {"one-column": 3.3, "two-column": 6.9}
FONT_SIZE = 7.0
BASELINE = "DynamicCache"
SHARES, MAGNITUDES = "cividis", "magma"
"""Colour maps of heat maps: shares, where light is good, and magnitudes and errors, where light is large."""

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
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
    marker: str
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
SPARE = (
    Style("#332288", "*", size=5.6),
    Style("#44AA99", "8", DASHDOT, 4.4),
    Style("#AA4499", "<", DASHDOT),
    Style("#CC6677", ">", DASHDOT),
    Style("#117733", "p", DASHDOT, 4.6),
    Style("#661100", "P", DOTTED, 4.6),
    Style("#B8860B", "H", DOTTED, 4.6),
    Style("#5C6BC0", "d", DOTTED),
)
LONGEST_LINE = 20
VARIANT_LINES = (DASHED, DOTTED, DASHDOT)
VARIANT_MARKERS = (("d", 4.4), ("*", 6.2), ("p", 4.8), ("<", 4.2), (">", 4.2), ("8", 4.6))


def rank(label: str, bits: float | None = None) -> tuple[float, str]:
    """Sort key: the baseline, known formats from many bits to few, then the others by their bits and name."""
    known = list(STYLES)
    base = label if label in STYLES else next((name for name in known if label.startswith(name + "+")), "")
    if base:
        return float(known.index(base)), label
    return len(known) + (32 - bits if bits is not None and bits == bits else 64), label


def broken(label: str) -> str:
    """A long name in lines for narrow places, broken before its plus signs."""
    lines = [""]
    for part in re.findall(r"\+?[^+]+", label):
        if lines[-1] and len(lines[-1] + part) > LONGEST_LINE:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def styles_for(labels: Iterable[str]) -> dict[str, Style]:
    """A style for every label: the fixed one, a variant of it for another policy, or a spare one by name."""
    ordered = sorted(dict.fromkeys(labels), key=rank)
    chosen = {label: STYLES[label] for label in ordered if label in STYLES}
    for label in ordered:
        if label not in chosen:
            base = next((name for name in STYLES if label.startswith(name + "+")), None)
            chosen[label] = _variant(STYLES[base], base, chosen) if base else _spare(label, chosen)
    return {label: chosen[label] for label in ordered}


def _variant(style: Style, base: str | None, chosen: dict[str, Style]) -> Style:
    count = sum(1 for label in chosen if label.startswith(f"{base}+"))
    marker, size = VARIANT_MARKERS[count % len(VARIANT_MARKERS)]
    return replace(style, linestyle=VARIANT_LINES[count % len(VARIANT_LINES)], marker=marker, size=size)


def _spare(label: str, chosen: dict[str, Style]) -> Style:
    start = zlib.crc32(label.encode()) % len(SPARE)
    order = [SPARE[(start + step) % len(SPARE)] for step in range(len(SPARE))]
    return next((style for style in order if style not in chosen.values()), order[0])
