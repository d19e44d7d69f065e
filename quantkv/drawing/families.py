"""Which family of formats a name or a spec belongs to, and the shades in which its members are drawn.

A family has a range of hues, so that all of its members read as one colour, and each member its own shade.
"""

from __future__ import annotations

import colorsys
import itertools
import re
from collections.abc import Collection
from functools import cache

CODECS = {
    "float": r"(fp32|fp16|bf16|exact)\b",
    "fp8": r"fp8\b",
    "8 bits": r"int8\b",
    "4 bits": r"int4\b",
    "kivi": r"kivi\b",
    "mixed": r"k\d+v\d+\b",
}
OTHER = "other"
HUES = {
    "float": (0, 0),
    "fp8": (322, 344),
    "8 bits": (192, 230),
    "4 bits": (16, 43),
    "kivi": (138, 172),
    "mixed": (48, 80),
    OTHER: (262, 304),
}
"""Degrees, from the first to the last hue of a family; floats are grey."""
STEPS = 8
SATURATIONS = (0.8, 0.5)
LIGHTNESS = (0.32, 0.74)
"""As it is seen, from 0 for black to 1 for white: dark enough to stand on a page, and no black."""


def family(spec: str) -> str:
    """By the codecs of keys and values: mixed where they differ, KIVI where keys share a scale along tokens
    and values along channels."""
    parts = spec.split("+")
    halves = [part[2:] for part in parts if part.startswith(("k.", "v."))] or parts[:1]
    codecs = {half.split("-")[0] for half in halves}
    if len(codecs) > 1:
        return "mixed"
    if len(halves) > 1 and "-channel" in halves[0] and "-token@" in halves[1]:
        return "kivi"
    return next((name for name, codec in CODECS.items() if re.match(codec, halves[0])), OTHER)


def shade(name: str, taken: Collection[str]) -> str:
    """The shade of a family that is farthest from all colours taken."""
    return max(_shades(name), key=lambda color: min(distance(color, other) for other in taken))


@cache
def _shades(name: str) -> tuple[str, ...]:
    """Hues, lightnesses and saturations in equal steps; greys have lightness alone, in finer ones."""
    first, last = HUES[name]
    grey = first == last
    hues = [first + (last - first) * step / (STEPS - 1) for step in range(1 if grey else STEPS)]
    lights = [step / 100 for step in range(10, 75, 1 if grey else 8)]
    every = itertools.product((0.0,) if grey else SATURATIONS, lights, hues)
    low, high = LIGHTNESS
    found = (hex_color(hue / 360, light, saturation) for saturation, light, hue in every)
    return tuple(color for color in found if low <= _seen(color)[0] <= high)


def hex_color(hue: float, light: float, saturation: float) -> str:
    parts = colorsys.hls_to_rgb(hue, min(light, 1.0), saturation)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)


def rgb(color: str) -> tuple[float, ...]:
    return tuple(part / 255 for part in bytes.fromhex(color[1:]))


def linear_rgb(color: str) -> tuple[float, ...]:
    """In proportion to the light of each."""
    return tuple(p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in rgb(color))


def distance(one: str, other: str) -> float:
    """How far apart two colours look: 0 is the same, 1 is black from white."""
    return sum((a - b) ** 2 for a, b in zip(_seen(one), _seen(other))) ** 0.5


@cache
def _seen(color: str) -> tuple[float, float, float]:
    """OKLab: lightness, green to red, blue to yellow."""
    red, green, blue = linear_rgb(color)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )
