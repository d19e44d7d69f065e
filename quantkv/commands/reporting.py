"""A report on the terminal and in files: what `quantkv sweep` and `quantkv report` end with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError
from quantkv.wording.streams import print_line

if TYPE_CHECKING:
    from rich.console import Console

    from quantkv.sweep.config import Report


@dataclass(slots=True)
class Written:
    """The files of a report, and a line for each that could not be written."""

    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [str(path) for path in self.files]

    def end(self) -> None:
        """Exit code 2 if there were problems; called last, after everything that can be done is done."""
        if self.problems:
            raise QuantKVError("\n".join(self.problems))


def print_report(
    rows: list[dict[str, Any]], folder: Path, out: Path, chosen: Report, console: Console, *, table: bool
) -> Written:
    """The numbers (if ``table``), then the files."""
    from quantkv.report.pictures import inspections_in
    from quantkv.report.terminal import terminal_table
    from quantkv.report.write import write_report

    tell = partial(print_line, console=console)
    if table:
        terminal_table(rows, console)
    written = Written()
    options = chosen.model_dump() | {"inspections": inspections_in(folder), "tell": tell}
    for path in write_report(rows, out, **options, warn=written.problems.append):
        written.files.append(path)
        tell(f"  {path}")
    return written
