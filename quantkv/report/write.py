"""Write what a reader of a sweep needs into one folder: tables, figures, and what each must say of itself.

File names are stable: ``table.csv``, ``kl.pdf``; several models, batches or protocols add their names, but
there is one ``report.html`` for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkv.drawing.style import WIDTHS
from quantkv.errors import QuantKVError
from quantkv.files import write_whole
from quantkv.report.figures import FILES, OTHER_NAMES, kinds_of, titles
from quantkv.report.kind_tables import kind_tables
from quantkv.report.markup import csv
from quantkv.report.pictures import Picture, extra_figures, pictures_of
from quantkv.report.tables import latex_table, markdown_table
from quantkv.report.together import PARTS, Joint, joints, pictures_together, tables_together
from quantkv.rows.files import read_rows
from quantkv.studies.kind import tabled
from quantkv.studies.study import Row, Study, studies, summary_frame
from quantkv.wording.escapes import markdown

TABLES = ("md", "tex", "csv")
PAGE = "report.html"


LISTS = ("figures.tex", "figures-together.tex")
SHOWN = {"table.md": r"\]\(([\w.-]+)\)\n"} | dict.fromkeys(LISTS, r"\\includegraphics\[[^]]*\]\{([\w.-]+)\}")
"""How the texts of a report show the file of a figure."""


@dataclass
class _Folder:
    """Takes files by name and remembers what it could not take: one bad file costs no other. ``kinds`` are
    the types of figures, ``texts`` those of tables."""

    path: Path
    kinds: Sequence[str]
    texts: Sequence[str]
    written: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        except OSError as error:
            self.problems.append(f"cannot write {path}: {error.strerror}")
        else:
            self.written.append(path)

    def write_texts(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self.write(name, text.encode())

    def write_list(self, name: str, pictures: Sequence[Picture]) -> None:
        """A figure environment for each, in the order in which they are written."""
        if pictures and "tex" in self.texts:
            self.write(name, "\n".join(picture.latex(self.kinds) for picture in pictures).encode())

    def write_pictures(self, pictures: Iterable[Picture]) -> None:
        for picture in pictures:
            from quantkv.drawing.figure import rendered

            figure = picture.draw()
            for kind in self.kinds:
                self.write(f"{picture.stem}.{kind}", rendered(figure, kind))

    def shown(self) -> set[str]:
        """The files of figures that the tables of a report there show, whatever their type, and the lists of
        figures themselves."""
        names: set[str] = set()
        for table, shown in SHOWN.items():
            path = self.path / table
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            names |= {name.rpartition(".")[0] for name in re.findall(shown, text)}
        figures = [name for name in names if name.partition("-")[0] in titles()]
        return {*LISTS, *(f"{name}.{kind}" for name in figures for kind in FILES)}

    def remove(self, shown: Collection[str]) -> list[str]:
        """Removes what an earlier report left and this one did not write, which would look like this one's;
        returns the names."""
        new = {path.name for path in self.written}
        stale = sorted(name for name in set(shown) - new if (self.path / name).is_file())
        try:
            for name in stale:
                (self.path / name).unlink()
        except OSError as error:
            self.problems.append(f"cannot remove {error.filename}, of an earlier report: {error.strerror}")
            return []
        return stale


def write_report(
    results: str | Path | Sequence[Row],
    out: str | Path | None = None,
    *,
    figures: Iterable[str] | None = None,
    width: str = "one-column",
    files: Iterable[str] = ("png", "pdf"),
    tables: Iterable[str] = TABLES,
    html: bool = True,
    together: Iterable[str] = (),
    inspections: Iterable[Path] = (),
    warn: Callable[[str], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Path]:
    """Tables, figures, then the page, from a results folder or from rows; returns the paths in that order.

    ``together`` are those of model and dtype across which one more table and one more figure of each kind
    are made. ``inspections`` are folders that ``quantkv inspect`` wrote. ``warn`` is told of the files that
    cannot be written, a line for each; without it that is an error. ``tell`` is told, in one line each, of
    figures that nothing was measured for, and of those that an earlier report left and this one removes.
    """
    legal, say = tuple(titles()), tell or (lambda line: None)
    given = legal if figures is None else figures
    wanted = _known("figure", (OTHER_NAMES.get(name, name) for name in given), legal)
    kinds = _known("file type", files, FILES)
    texts = _known("table", tables, TABLES)
    _known("width", [width], tuple(WIDTHS))
    across = _known("part", together, PARTS)
    rows = list(read_rows(results) if isinstance(results, str | Path) else results)
    found, asked = studies(rows), wanted if kinds else []
    extras = [extra for extra in extra_figures(rows, inspections) if extra.name in asked]
    if not found and not extras and not any(row["kind"] in tabled() for row in rows):
        source = results if isinstance(results, str | Path) else "what was given"
        raise QuantKVError(f"no result rows in {source}")
    folder = _Folder(_place(results, out), kinds, texts)
    shown = folder.shown() if {"md", "tex"} & set(texts) else set()
    own = [(study, list(pictures_of(study, asked, width, several=len(found) > 1))) for study in found]
    pictures = [*(picture for _, drawn in own for picture in drawn), *extras]
    folder.write_texts(_tables(rows, own, wanted, folder) if found else {})
    folder.write_texts(kind_tables(rows, texts))
    folder.write_list("figures.tex", pictures)
    folder.write_pictures(pictures)
    joined = joints(found, across) if across else []
    _write_together(joined, asked, folder)
    if across and not joined:
        say(f"nothing to put together: no two studies differ in {' or '.join(across)} alone")
    if absent := [name for name in asked if name not in {picture.name for picture in pictures}]:
        say(f"not drawn, for lack of numbers: {', '.join(absent)}")
    if not folder.problems and (stale := folder.remove(shown)):
        say(f"removed, of an earlier report: {', '.join(stale)}")
    if html:
        from quantkv.report.html import page

        folder.write(PAGE, page(rows).encode())
    if folder.problems:
        (warn or _refuse)("\n".join(folder.problems))
    return folder.written


def _refuse(problem: str) -> None:
    raise QuantKVError(problem)


def _known(what: str, names: Iterable[str], legal: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in legal:
            raise QuantKVError(f"unknown {what} '{name}'; known are {', '.join(legal)}")
    return found


def _place(results: Any, out: str | Path | None) -> Path:
    if out is None and not isinstance(results, str | Path):
        raise QuantKVError("rows were given without a folder: say where to write with out=...")
    return Path(out) if out is not None else Path(results) / "report"


def _write_together(joined: Iterable[Joint], wanted: Sequence[str], folder: _Folder) -> None:
    """Tables, figures and their captions across models or dtypes."""
    pictures = []
    for joint in joined:
        folder.write_texts(tables_together(joint, folder.texts))
        pictures += (drawn := list(pictures_together(joint, wanted)))
        folder.write_pictures(drawn)
    folder.write_list("figures-together.tex", pictures)


def _tables(
    rows: Sequence[Row],
    own: Sequence[tuple[Study, Sequence[Picture]]],
    wanted: Sequence[str],
    folder: _Folder,
) -> dict[str, str]:
    """File name to text."""
    made: dict[str, Callable[[], str]] = {
        "md": lambda: "\n".join(_section(study, drawn, wanted, folder.kinds) for study, drawn in own),
        "tex": lambda: "\n".join(latex_table(study) for study, _ in own),
        "csv": lambda: csv(summary_frame(rows)),
    }
    return {f"table.{ending}": make() for ending, make in made.items() if ending in folder.texts}


def _section(study: Study, drawn: Sequence[Picture], wanted: Sequence[str], kinds: Sequence[str]) -> str:
    """One study in Markdown: table, caption, figures, and what could not be drawn."""
    batch = "" if study.batch == 1 or "batch" in study.told else f", batch {study.batch}"
    lines = [f"## {markdown(study.title)}{batch}", "", markdown_table(study)]
    shown = next((kind for kind in kinds if kind in ("png", "svg")), None)
    for picture in drawn if shown else ():
        lines += [f"![{picture.says}]({picture.stem}.{shown})", "", picture.says, ""]
    names = {picture.name for picture in drawn}
    absent = [name for name in wanted if kinds_of(name) and name not in names]
    lines += [f"Not drawn, for lack of numbers: {', '.join(absent)}.", ""] if absent and drawn else []
    return "\n".join(lines)
