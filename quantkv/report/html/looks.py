"""The look of each format in the page: the colours and markers of ``drawing.style``, for light and for dark.

Colours are CSS variables, so that the page changes its theme without drawing anything again; markers are the
outlines matplotlib draws in the figures.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping
from typing import Any

from quantkv.drawing.families import hex_color, linear_rgb, rgb
from quantkv.drawing.style import BASELINE, Style, styles_for

DARK_BACKGROUND = "#17191c"
MIN_CONTRAST = 3.5
LIGHTER = 0.02
NEUTRAL = 0.02


def looks(labels: Iterable[str], prefix: str, specs: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """A look per label, in the order of the tables: its CSS variable, both colours, outline, dashes and size.

    ``outline`` holds the corners of the marker within a circle of radius 1, y downwards; null is that circle.
    """
    return [
        {
            "label": label,
            "color": f"var(--{prefix}{index})",
            "variable": f"--{prefix}{index}",
            "light": style.color,
            "dark": dark_color(style.color),
            "outline": outline(style.marker),
            "dash": _dashes(style),
            "size": style.size,
        }
        for index, (label, style) in enumerate(styles_for([BASELINE, *labels], specs).items())
    ]


def dark_color(color: str) -> str:
    """The same hue, as light as contrast on the dark background asks for; greys become their inverse."""
    hue, light, saturation = colorsys.rgb_to_hls(*rgb(color))
    light = 1 - light if saturation < NEUTRAL else light
    while contrast(hex_color(hue, light, saturation), DARK_BACKGROUND) < MIN_CONTRAST:
        light += LIGHTER
    return hex_color(hue, light, saturation)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def outline(marker: Any) -> list[list[float]] | None:
    """Corners of a matplotlib marker, the farthest on the unit circle, y downwards; None for a circle."""
    from matplotlib.markers import MarkerStyle

    if marker == "o":
        return None
    drawn = MarkerStyle(marker)
    polygons: Any = drawn.get_path().transformed(drawn.get_transform()).to_polygons()
    corners = polygons[0][:-1]  # the last closes the outline
    reach = max(float(x * x + y * y) for x, y in corners) ** 0.5
    return [[round(float(x) / reach, 3) + 0.0, round(-float(y) / reach, 3) + 0.0] for x, y in corners]


def _dashes(style: Style) -> str:
    return "" if style.linestyle == "-" else " ".join(f"{2 * length:g}" for length in style.linestyle[1])


def _luminance(color: str) -> float:
    red, green, blue = linear_rgb(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
