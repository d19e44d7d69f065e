"""Write what a reader of a sweep needs into one folder: tables, figures, and what each must say of itself.

File names are stable: ``table.csv``, ``kl.pdf``; several models, batches or protocols add their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.report.style import WIDTHS
from quantkv.report.summary import Row, Study, studies, summary_frame
from quantkv.report.tables import csv, latex_figure, latex_table, markdown

FIGURES = ("memory", "decode_ms", "decode_tps", "ppl_ratio", "kl", "overview")
OTHER_NAMES = {"decode_tokens_per_s": "decode_tps"}
FILES = ("png", "pdf", "svg")
TABLES = ("md", "tex", "csv")
TITLES = {
    "memory": "Memory the cache holds against context.",
    "decode_ms": "Decode time against context; bars from the 10th to the 90th percentile.",
    "decode_tps": "Decode speed against context; bars from the 10th to the 90th percentile.",
    "ppl_ratio": "Perplexity relative to the exact cache against context, with intervals.",
    "kl": "KL divergence from the exact cache against context, with intervals.",
    "overview": "Memory, decode speed, perplexity ratio and KL divergence against context.",
}
KINDS_OF = {
    "memory": ("memory",),
    "decode_ms": ("speed",),
    "decode_tps": ("speed",),
    "ppl_ratio": ("quality",),
    "kl": ("quality",),
}


def write_report(
    results: str | Path | Sequence[Row],
    out: str | Path | None = None,
    *,
    figures: Iterable[str] = FIGURES,
    width: str = "one-column",
    files: Iterable[str] = ("png", "pdf"),
    tables: Iterable[str] = TABLES,
) -> list[Path]:
    """Tables and figures from a results folder or from rows; returns the paths written, tables first."""
    wanted = [OTHER_NAMES.get(name, name) for name in figures]
    wanted = _known("figure", wanted, FIGURES)
    kinds = _known("file type", files, FILES)
    texts = _known("table", tables, TABLES)
    _known("width", [width], tuple(WIDTHS))
    rows = _rows(results)
    found = studies(rows)
    if not found:
        raise QuantKVError(
            f"no result rows in {results if isinstance(results, str | Path) else 'what was given'}"
        )
    folder = _folder(results, out)
    drawn = {
        study.slug: _write_figures(study, folder, wanted, width, kinds, len(found) > 1) for study in found
    }
    return _write_tables(rows, found, drawn, wanted, folder, texts) + [
        path for figure in drawn.values() for paths in figure.values() for path in paths
    ]


def _known(what: str, names: Iterable[str], legal: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in legal:
            raise QuantKVError(f"unknown {what} '{name}'; known are {', '.join(legal)}")
    return found


def _rows(results: str | Path | Sequence[Row]) -> list[Row]:
    if not isinstance(results, str | Path):
        return list(results)
    from quantkv.sweep.results import read_rows

    return list(read_rows(results))


def _folder(results: Any, out: str | Path | None) -> Path:
    if out is None and not isinstance(results, str | Path):
        raise QuantKVError("rows were given without a folder: say where to write with out=...")
    folder = Path(out) if out is not None else Path(results) / "report"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QuantKVError(f"cannot write the report to {folder}: {error.strerror}") from error
    return folder


def _write_figures(
    study: Study, folder: Path, wanted: Sequence[str], width: str, kinds: Sequence[str], several: bool
) -> dict[str, list[Path]]:
    """The figures there are numbers for, each in every file type."""
    if not wanted or not kinds:
        return {}
    from quantkv.report.plots import can_draw, draw, save

    drawn = {}
    for name in wanted:
        if can_draw(study, name):
            figure = draw(study, name, width=_width(name, width))
            stem = f"{name}-{study.slug}" if several else name
            drawn[name] = [save(figure, folder / f"{stem}.{kind}") for kind in kinds]
    return drawn


def _width(figure: str, width: str) -> str:
    """Four panels need the whole width of the page."""
    return "two-column" if figure == "overview" else width


def _write_tables(
    rows: Sequence[Row],
    found: Sequence[Study],
    drawn: dict[str, dict[str, list[Path]]],
    wanted: Sequence[str],
    folder: Path,
    kinds: Sequence[str],
) -> list[Path]:
    texts: dict[str, str] = {}
    if "md" in kinds:
        texts["table.md"] = "\n".join(_section(study, drawn[study.slug], wanted) for study in found)
    if "tex" in kinds:
        texts["table.tex"] = "\n".join(latex_table(study) for study in found)
        figures = [text for study in found for text in _tex_figures(study, drawn[study.slug])]
        texts |= {"figures.tex": "\n".join(figures)} if figures else {}
    if "csv" in kinds:
        texts["table.csv"] = csv(summary_frame(rows))
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _section(study: Study, drawn: dict[str, list[Path]], wanted: Sequence[str]) -> str:
    """One study in Markdown: table, caption, figures, and what could not be drawn."""
    lines = [f"## {study.model}" + (f", batch {study.batch}" if study.batch > 1 else ""), "", markdown(study)]
    for name, paths in drawn.items():
        shown = next((path for path in paths if path.suffix in (".png", ".svg")), None)
        lines += [f"![{TITLES[name]}]({shown.name})", "", TITLES[name], ""] if shown else []
    absent = [name for name in wanted if name not in drawn]
    lines += [f"Not drawn, for lack of numbers: {', '.join(absent)}.", ""] if absent and drawn else []
    return "\n".join(lines)


def _tex_figures(study: Study, drawn: dict[str, list[Path]]) -> list[str]:
    texts = []
    for name, paths in drawn.items():
        file = next((path.name for path in paths if path.suffix == ".pdf"), paths[0].name)
        wide = _width(name, "one-column") == "two-column"
        texts.append(latex_figure(study, file, TITLES[name], KINDS_OF.get(name), wide=wide))
    return texts
