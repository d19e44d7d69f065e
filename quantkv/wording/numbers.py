"""Numbers as a reader wants them: sensible digits, and an em dash, never a zero, where nothing was measured.

Everything here returns plain text; ``escapes`` converts it at the very end.
"""

from __future__ import annotations

import math
import re
from typing import Any

DASH = "—"
MINUS = "−"
SMALLEST_PLAIN = 1e-3


def missing(value: Any) -> bool:
    """Not measured: None, NaN or pandas' NA."""
    return value is None or value != value or type(value).__name__ == "NAType"


def number(value: Any) -> float | None:
    """As JSON holds it: null where nothing was measured."""
    return None if missing(value) else float(value)


def decimals_for(value: float, digits: int) -> int:
    """Decimals that show ``digits`` significant digits of ``value``."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else digits - 1


def fixed(value: Any, decimals: int, *, sign: bool = False) -> str:
    if missing(value):
        return DASH
    text = f"{value:{'+' if sign else ''}.{decimals}f}"
    return re.sub(r"^[+-](?=0\.?0*$)", "", text).replace("-", MINUS)


def significant(value: Any, digits: int = 3) -> str:
    """``digits`` significant digits without an exponent; whole digits are never rounded away."""
    if missing(value):
        return DASH
    return fixed(value, decimals_for(float(f"{value:.{digits - 1}e}"), digits))


def compact(value: Any, digits: int = 2) -> str:
    """As ``significant``, but ``1.2e−5`` below a thousandth."""
    if missing(value) or value == 0:
        return DASH if missing(value) else "0"
    if abs(value) >= SMALLEST_PLAIN:
        return significant(value, digits)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", MINUS)


def with_interval(value: Any, low: Any, high: Any, *, sign: bool = False, default: int = 4) -> str:
    """A difference and its interval with as many decimals as the interval's width supports."""
    if missing(value) or missing(low) or missing(high):
        return fixed(value, default, sign=sign)
    decimals = _interval_decimals(low, high, default)
    middle, lower, upper = (fixed(number, decimals, sign=sign) for number in (value, low, high))
    return f"{middle} [{lower}, {upper}]"


def with_half_width(value: Any, low: Any, high: Any, *, sign: bool = False, default: int = 4) -> str:
    """The same for narrow places, with half the interval's width behind ±."""
    if missing(value) or missing(low) or missing(high):
        return fixed(value, default, sign=sign)
    decimals = _interval_decimals(low, high, default)
    return f"{fixed(value, decimals, sign=sign)} ±{fixed((high - low) / 2, decimals)}"


def _interval_decimals(low: float, high: float, default: int) -> int:
    return min(5, decimals_for((high - low) / 2, 2)) if high > low else default


def compact_interval(value: Any, low: Any, high: Any) -> str:
    """Three numbers with the first one's decimals and, when small, its exponent: ``1.0 [0.8, 1.3]e−5``."""
    if missing(value) or missing(low) or missing(high):
        return compact(value)
    exponent = math.floor(math.log10(abs(value))) if value and abs(value) < SMALLEST_PLAIN else 0
    scaled = [number / 10.0**exponent for number in (value, low, high)]
    middle, lower, upper = (fixed(number, decimals_for(scaled[0], 2)) for number in scaled)
    return f"{middle} [{lower}, {upper}]" + (f"e{exponent}".replace("-", MINUS) if exponent else "")


def percent(share: Any) -> str:
    """One decimal; a share below one never reads as 100.0, nor one above zero as 0.0."""
    if missing(share):
        return DASH
    text = f"{100 * share:.1f}"
    if text == "100.0" and share < 1:
        return ">99.9"
    return "<0.1" if text == "0.0" and share > 0 else text


def ratio(value: Any) -> str:
    return fixed(value, 2) if missing(value) or value < 10 else significant(value)


def tokens(count: int) -> str:
    """A context length for a narrow axis: 512, 2048, 16k."""
    return f"{count // 1024}k" if count >= 10_000 and count % 1024 == 0 else str(count)
