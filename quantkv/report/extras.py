"""Figures that are not of a study: those of a kind's own table, and the errors of an inspection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError
from quantkv.measurements.kind import kind
from quantkv.report.figures import titles
from quantkv.report.kind_tables import caption
from quantkv.report.picture import Picture
from quantkv.studies.groups import Row, groups
from quantkv.studies.kind import tabled
from quantkv.wording.parts import DIGITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTS, ERRORS = "inspection.json", "errors.csv"


def extra_figures(rows: Sequence[Row], inspections: Iterable[Path]) -> list[Picture]:
    """Those that can be drawn: retrieval needs rows with numbers, layers inspections of some format."""
    places = [(own, name) for own in tabled() for name in kind(own).figures]
    pictures = [picture for own, name in places for picture in _pictures(rows, own, name)]
    folders = [folder for folder in inspections if (folder / ERRORS).read_text(encoding="utf-8").strip()]
    layers = [
        Picture(
            "layers", stem, titles()["layers"], _inspection_caption(_facts(folder)), partial(_layers, folder)
        )
        for stem, folder in _numbered("layers", folders)
    ]
    return pictures + layers


def _pictures(rows: Sequence[Row], own: str, name: str) -> Iterator[Picture]:
    """One for each table of the kind that has numbers."""
    found = [group for group in groups(rows, own) if any(row["status"] == "ok" for row in group.rows)]
    for group in found:
        stem = f"{name}-{group.slug}" if len(found) > 1 else name
        yield Picture(name, stem, titles()[name], caption(group), partial(kind(own).picture, name, group))


def inspections_in(folder: Path) -> list[Path]:
    """The folders, this one or one in it, that hold what ``quantkv inspect`` wrote."""
    if not folder.is_dir():
        return []
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [place for place in places if (place / FACTS).is_file() and (place / ERRORS).is_file()]


def _numbered(name: str, items: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, item in enumerate(items):
        yield (name if len(items) == 1 else f"{name}-{index + 1}"), item


def _layers(folder: Path) -> Figure:
    import pandas as pd

    from quantkv.measurements.inside.figures import error_figure

    return error_figure(pd.read_csv(folder / ERRORS))


def _facts(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise QuantKVError(f"cannot read {folder / FACTS}: {error}") from error


def _inspection_caption(facts: dict[str, Any]) -> str:
    """How the errors were made; what older inspections do not hold is left out."""
    weights = f" (weights {facts['weights']}, computed in {facts['dtype']})" if facts.get("weights") else ""
    digest = f" (sha256 {facts['text_sha256'][:DIGITS]})" if facts.get("text_sha256") else ""
    return (
        f"{facts.get('model')}{weights}. {facts.get('queries')} queries over {facts.get('context')} cached "
        f"tokens of {facts.get('text')}{digest}; errors relative to the root mean square of the exact tensor."
    )
