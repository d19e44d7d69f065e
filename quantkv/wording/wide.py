"""Printing what must not be squeezed or read as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_wide(part: RenderableType, console: Console) -> None:
    """Print a table or line as wide as it is, whatever the console's width: a cut short string would name
    no format. The width that `Console.print` takes is no larger than the console's."""
    from rich.measure import Measurement
    from rich.segment import Segments

    whole = Measurement.get(console, console.options.update(max_width=10_000), part).maximum
    options = console.options.update(width=max(whole, console.width), highlight=False, markup=False)
    console.print(Segments(console.render(part, options)), soft_wrap=True, end="")


def print_line(line: str, console: Console, style: str | None = None) -> None:
    """Print words as they stand."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
