"""What a user may have named, as a figure shows it: no mathematics, no missing letter, in lines that fit.

matplotlib itself wraps text at spaces alone and at the figure's edge, and sets what lies between two
dollars as mathematics.
"""

from __future__ import annotations

import math
import re
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path

from quantkv.drawing.style import FONT_SIZE, RC
from quantkv.wording.escapes import code_point, one_line

NARROW = 88.0
"""Points for a name beside an axis, or above one that is not wide."""
WHOLE_PIXELS = 1.06
"""How much wider letters become where they end at whole pixels."""
LONGEST_NAME = 200
"""Characters of a name that a figure shows; of a longer one it shows both ends."""


def drawn(text: str, points: float = math.inf) -> str:
    """In lines of so many points, broken before plus signs and after spaces and slashes, else wherever they
    must be."""
    known = _glyphs()
    name = "".join(c if ord(c) in known else code_point(c) for c in one_line(text))
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME // 2]} … {name[-LONGEST_NAME // 2 :]}"
    lines = [""]
    for part in re.split(r"(?=\+)|(?<=[ /])", name):
        for piece in [part] if _width(part) <= points else part:
            if lines[-1] and _width(lines[-1] + piece) > points:
                lines.append("")
            lines[-1] += piece
    return "\n".join(lines).replace("$", r"\$")


def _width(line: str) -> float:
    font = FontProperties(family=RC["font.family"], size=FONT_SIZE)
    return WHOLE_PIXELS * float(text_to_path.get_text_width_height_descent(line, font, ismath=False)[0])


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(RC["font.family"])).get_charmap())
