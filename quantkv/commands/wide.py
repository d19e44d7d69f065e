"""Printing what must not be squeezed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_wide(part: RenderableType, console: Console) -> None:
    """Print a table or line unsqueezed: a cut short string would name no format."""
    from rich.measure import Measurement

    whole = Measurement.get(console, console.options.update(max_width=10_000), part).maximum
    # a dumb terminal heeds a width only beside a height
    wide = type(console)(width=max(whole, console.width), height=console.height)
    wide.print(part, highlight=False, markup=False)
