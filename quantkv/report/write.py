"""Write what a reader of a sweep needs into one folder: tables, figures, and what each must say of itself.

File names are stable: ``table.csv``, ``kl.pdf``; several models, batches or protocols add their names, but
there is one ``report.html`` for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkv.drawing.style import WIDTHS
from quantkv.errors import QuantKVError
from quantkv.files import write_whole
from quantkv.report.extras import Extra, described, extra_figures
from quantkv.report.figures import FILES, OTHER_NAMES, figure_title, kinds_of, titles
from quantkv.report.kind_tables import kind_tables
from quantkv.report.markup import csv, latex_figure
from quantkv.report.stale import figures_shown, remove_stale
from quantkv.report.tables import latex_table, markdown_table
from quantkv.report.together import PARTS, drawable, figure_together, joints, tables_together
from quantkv.studies.captions import caption
from quantkv.studies.kind import tabled
from quantkv.studies.study import Row, Study, studies, summary_frame
from quantkv.wording.escapes import markdown

TABLES = ("md", "tex", "csv")
PAGE = "report.html"
FigureFiles = Mapping[str, list[str]]
"""Figure to its file names."""


@dataclass
class _Folder:
    """Takes files by name and remembers what it could not take: one bad file costs no other."""

    path: Path
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
    legal = tuple(titles())
    asked = legal if figures is None else figures
    wanted = _known("figure", (OTHER_NAMES.get(name, name) for name in asked), legal)
    kinds = _known("file type", files, FILES)
    texts = _known("table", tables, TABLES)
    _known("width", [width], tuple(WIDTHS))
    across = _known("part", together, PARTS)
    rows = _rows(results)
    found = studies(rows)
    extras = [extra for extra in extra_figures(rows, inspections) if extra.name in wanted and kinds]
    if not found and not extras and not any(row["kind"] in tabled() for row in rows):
        raise QuantKVError(
            f"no result rows in {results if isinstance(results, str | Path) else 'what was given'}"
        )
    folder = _Folder(_place(results, out))
    shown = figures_shown(folder.path) if {"md", "tex"} & set(texts) else set()
    plan = {study.slug: _planned(study, wanted, kinds, len(found) > 1) for study in found}
    for name, text in (_tables(rows, found, plan, wanted, texts) if found else {}).items():
        folder.write(name, text.encode())
    for name, text in kind_tables(rows, texts).items():
        folder.write(name, text.encode())
    if "tex" in texts and (figures_tex := _tex_figures(found, plan, extras, kinds)):
        folder.write("figures.tex", figures_tex.encode())
    for study in found:
        _write_figures(study, plan[study.slug], folder, width)
    _write_extras(extras, folder, kinds)
    _write_together(found, across, folder, (wanted, kinds, texts), tell)
    _say_absent(wanted if kinds else [], plan, extras, tell)
    if not folder.problems:
        _remove_earlier(folder, shown, tell)
    if html:
        from quantkv.report.html import page

        folder.write(PAGE, page(rows).encode())
    if folder.problems:
        (warn or _refuse)("\n".join(folder.problems))
    return folder.written


def _say_absent(
    wanted: Sequence[str],
    plan: Mapping[str, FigureFiles],
    extras: Sequence[Extra],
    tell: Callable[[str], None] | None,
) -> None:
    drawn = {name for own in plan.values() for name in own} | {extra.name for extra in extras}
    absent = [name for name in wanted if name not in drawn]
    if absent and tell is not None:
        tell(f"not drawn, for lack of numbers: {', '.join(absent)}")


def _remove_earlier(folder: _Folder, shown: Collection[str], tell: Callable[[str], None] | None) -> None:
    """Figures of an earlier report, which would look like this one's."""
    try:
        stale = remove_stale(folder.path, shown, {path.name for path in folder.written})
    except OSError as error:
        folder.problems.append(f"cannot remove {error.filename}, of an earlier report: {error.strerror}")
        return
    if stale and tell is not None:
        tell(f"removed, of an earlier report: {', '.join(stale)}")


def _refuse(problem: str) -> None:
    raise QuantKVError(problem)


def _known(what: str, names: Iterable[str], legal: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in legal:
            raise QuantKVError(f"unknown {what} '{name}'; known are {', '.join(legal)}")
    return found


def _rows(results: str | Path | Sequence[Row]) -> list[Row]:
    if not isinstance(results, str | Path):
        return list(results)
    from quantkv.rows.files import read_rows

    return list(read_rows(results))


def _place(results: Any, out: str | Path | None) -> Path:
    if out is None and not isinstance(results, str | Path):
        raise QuantKVError("rows were given without a folder: say where to write with out=...")
    return Path(out) if out is not None else Path(results) / "report"


def _planned(study: Study, wanted: Sequence[str], kinds: Sequence[str], several: bool) -> FigureFiles:
    """The figures there are numbers for, each with its file names."""
    if not wanted or not kinds:
        return {}
    from quantkv.report.plots import can_draw

    names = [name for name in wanted if kinds_of(name) and can_draw(study, name)]
    stems = {name: f"{name}-{study.slug}" if several else name for name in names}
    return {name: [f"{stem}.{kind}" for kind in kinds] for name, stem in stems.items()}


def _write_figures(study: Study, plan: FigureFiles, folder: _Folder, width: str) -> None:
    for name, files in plan.items():
        from quantkv.drawing.figure import rendered
        from quantkv.report.plots import draw

        figure = draw(study, name, width=_width(name, width))
        for file in files:
            folder.write(file, rendered(figure, file.rpartition(".")[2]))


def _write_extras(extras: Sequence[Extra], folder: _Folder, kinds: Sequence[str]) -> None:
    for extra in extras:
        from quantkv.drawing.figure import rendered

        figure = extra.draw()
        for kind in kinds:
            folder.write(f"{extra.stem}.{kind}", rendered(figure, kind))


def _write_together(
    found: Sequence[Study],
    across: Sequence[str],
    folder: _Folder,
    made: tuple[Sequence[str], Sequence[str], Sequence[str]],
    tell: Callable[[str], None] | None,
) -> None:
    """Tables, figures and their captions across models or dtypes; ``made`` are figures, their file types and
    the types of tables."""
    wanted, kinds, texts = made
    joined = joints(found, across) if across else []
    if across and not joined and tell is not None:
        tell(f"nothing to put together: no two studies differ in {' or '.join(across)} alone")
    captions = []
    for joint in joined:
        for name, text in tables_together(joint, texts).items():
            folder.write(name, text.encode())
        for name, own in (drawable(joint, wanted) if kinds else {}).items():
            from quantkv.drawing.figure import rendered
            from quantkv.report.plots import draw_together

            figure = draw_together(own.studies, own.labels, name)
            files = [f"{own.stem}.{kind}" for kind in kinds]
            for file in files:
                folder.write(file, rendered(figure, file.rpartition(".")[2]))
            captions.append(figure_together(name, own, _included(files)))
    if captions and "tex" in texts:
        folder.write("figures-together.tex", "\n".join(captions).encode())


def _width(figure: str, width: str) -> str:
    """Four panels need the whole width of the page."""
    return "two-column" if figure == "overview" else width


def _tables(
    rows: Sequence[Row],
    found: Sequence[Study],
    plan: Mapping[str, FigureFiles],
    wanted: Sequence[str],
    kinds: Sequence[str],
) -> dict[str, str]:
    """File name to text."""
    texts: dict[str, str] = {}
    if "md" in kinds:
        texts["table.md"] = "\n".join(_section(study, plan[study.slug], wanted) for study in found)
    if "tex" in kinds:
        texts["table.tex"] = "\n".join(latex_table(study) for study in found)
    if "csv" in kinds:
        texts["table.csv"] = csv(summary_frame(rows))
    return texts


def _section(study: Study, plan: FigureFiles, wanted: Sequence[str]) -> str:
    """One study in Markdown: table, caption, figures, and what could not be drawn."""
    batch = "" if study.batch == 1 or "batch" in study.told else f", batch {study.batch}"
    lines = [f"## {markdown(study.title)}{batch}", "", markdown_table(study)]
    for name, files in plan.items():
        shown = next((file for file in files if file.endswith((".png", ".svg"))), None)
        said = figure_title(name, study)
        lines += [f"![{said}]({shown})", "", said, ""] if shown else []
    absent = [name for name in wanted if kinds_of(name) and name not in plan]
    lines += [f"Not drawn, for lack of numbers: {', '.join(absent)}.", ""] if absent and plan else []
    return "\n".join(lines)


def _tex_figures(
    found: Sequence[Study], plan: Mapping[str, FigureFiles], extras: Sequence[Extra], kinds: Sequence[str]
) -> str:
    """A figure environment for every figure, in the order they are written."""
    texts = []
    for study in found:
        for name, files in plan[study.slug].items():
            said = f"{figure_title(name, study)} {caption(study, kinds_of(name))}"
            wide = _width(name, "one-column") == "two-column"
            texts.append(latex_figure(_included(files), said, wide=wide))
    for extra in extras:
        files = [f"{extra.stem}.{kind}" for kind in kinds]
        texts.append(latex_figure(_included(files), described(extra), wide=True))
    return "\n".join(texts)


def _included(files: Sequence[str]) -> str:
    return next((file for file in files if file.endswith(".pdf")), files[0])
