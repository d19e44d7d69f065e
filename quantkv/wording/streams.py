"""Standard output and error as they come: terminals without all characters, readers that go away, and what
must not be squeezed or read as markup."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


# The few characters that we print; a table of all of them would be one more package.
STAND_INS = {
    "…": "...", "×": "x", "✗": "x", "÷": "/", "Δ": "d", "·": ".", "•": "*", "°": " deg", "µ": "u", "μ": "u",
    "→": "->", "≥": ">=", "≤": "<=", "≈": "~", "±": "+-", "∞": "inf", "σ": "sd",
    "—": "-", "–": "-", "−": "-", "━": "-", "╸": "-", "╺": "-", "─": "-", "│": "|",
    "‘": "'", "’": "'", "“": '"', "”": '"',
}  # fmt: skip
HANDLER = "quantkv-stand-ins"
READER_GONE = 141
"""As a shell has it for a command that such a pipe ends."""


def prepare() -> None:
    """From now on a character that a stream's encoding lacks is printed as one that it has."""
    codecs.register_error(HANDLER, _stand_in)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=HANDLER)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    if "\u2800" <= character <= "\u28ff":  # the wheel that turns
        return "*"
    letter = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return STAND_INS.get(character) or letter or "?"


def can_redraw(console: Console) -> bool:
    """Whether lines may be drawn over: a terminal that is not dumb, and no log of CI."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")


def drop_output() -> None:
    """What is printed from now on goes nowhere: its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def new_console(*, stderr: bool = False, lasting: bool = False) -> Console:
    """A console of rich. A reader that goes ends the command, unless it is to last: a sweep's results are not
    what it prints."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            if not lasting:
                raise BrokenPipeError
            drop_output()

    return _Console(stderr=stderr)


def bare_table(names: Iterable[str], *, left: Collection[str]) -> Table:
    """Columns without lines between them; numbers stand to the right, the columns in ``left`` to the left."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


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
