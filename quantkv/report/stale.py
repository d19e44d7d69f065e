"""Figures that an earlier report left in a folder: what its tables showed and the new ones do not."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from quantkv.report.figures import FILES, titles

SHOWN = r"\\includegraphics\[[^]]*\]\{([\w.-]+)\}"
LISTS = {"figures.tex": SHOWN, "figures-together.tex": SHOWN}
TABLES = {"table.md": r"\]\(([\w.-]+)\)\n"} | LISTS


def figures_shown(folder: Path) -> set[str]:
    """The files of figures that the tables of a report in the folder show, whatever their type, and the lists
    of figures themselves."""
    names: set[str] = set()
    for table, shown in TABLES.items():
        path = folder / table
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        names |= {name.rpartition(".")[0] for name in re.findall(shown, text)}
    figures = [name for name in names if name.partition("-")[0] in titles()]
    return {*LISTS, *(f"{name}.{kind}" for name in figures for kind in FILES)}


def remove_stale(folder: Path, shown: Collection[str], new: Collection[str]) -> list[str]:
    """Removes what was shown and is not new; returns the names."""
    stale = sorted(name for name in set(shown) - set(new) if (folder / name).is_file())
    for name in stale:
        (folder / name).unlink()
    return stale
