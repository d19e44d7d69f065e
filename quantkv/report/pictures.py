"""The figures that a report writes: of studies, of a kind's own table, and of an inspection."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkv.errors import QuantKVError
from quantkv.measurements.kind import kind
from quantkv.report.figures import figure_title, kinds_of, titles
from quantkv.report.kind_tables import caption as caption_of_table
from quantkv.report.markup import latex_figure
from quantkv.studies.captions import caption
from quantkv.studies.groups import Row, groups
from quantkv.studies.kind import tabled
from quantkv.studies.study import Study
from quantkv.wording.parts import DIGITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTS, ERRORS = "inspection.json", "errors.csv"
"""What ``quantkv inspect`` wrote."""


@dataclass(frozen=True)
class Picture:
    """``name`` is that in the settings, ``says`` what it shows, ``caption`` how its numbers were made;
    ``wide`` ones take both columns of a page."""

    name: str
    stem: str
    says: str
    caption: str
    draw: Callable[[], Figure]
    wide: bool = True

    def latex(self, kinds: Sequence[str]) -> str:
        """Its figure environment, where it was written as these types of file."""
        kind = "pdf" if "pdf" in kinds else kinds[0]
        return latex_figure(f"{self.stem}.{kind}", f"{self.says} {self.caption}", wide=self.wide)


def pictures_of(study: Study, wanted: Sequence[str], width: str, *, several: bool) -> Iterator[Picture]:
    """The figures there are numbers for; of several studies the files have names of their own."""
    for name in filter(kinds_of, wanted):
        from quantkv.report.plots import can_draw, draw

        if can_draw(study, name):
            wide = name == "overview"  # four panels need the whole width of the page
            drawn = partial(draw, study, name, width="two-column" if wide else width)
            stem = f"{name}-{study.slug}" if several else name
            said = caption(study, kinds_of(name))
            yield Picture(name, stem, figure_title(name, study), said, drawn, wide)


def extra_figures(rows: Sequence[Row], inspections: Iterable[Path]) -> Iterator[Picture]:
    """Those of no study that can be drawn: of tables with numbers, and of inspections of some format."""
    for own in map(kind, tabled()):
        found = [
            group for group in groups(rows, own.name) if any(row["status"] == "ok" for row in group.rows)
        ]
        for name, group in itertools.product(own.figures, found):
            stem = f"{name}-{group.slug}" if len(found) > 1 else name
            draw = partial(own.picture, name, group)
            yield Picture(name, stem, titles()[name], caption_of_table(group), draw)
    folders = [folder for folder in inspections if (folder / ERRORS).read_text(encoding="utf-8").strip()]
    for index, folder in enumerate(folders):
        stem = f"layers-{index + 1}" if len(folders) > 1 else "layers"
        yield Picture("layers", stem, titles()["layers"], _inspected(folder), partial(_layers, folder))


def inspections_in(folder: Path) -> list[Path]:
    """The folders, this one or one in it, that hold what ``quantkv inspect`` wrote."""
    if not folder.is_dir():
        return []
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    return [place for place in places if (place / FACTS).is_file() and (place / ERRORS).is_file()]


def _layers(folder: Path) -> Figure:
    import pandas as pd

    from quantkv.measurements.inside.figures import error_figure

    return error_figure(pd.read_csv(folder / ERRORS))


def _inspected(folder: Path) -> str:
    """How the errors were made; what older inspections do not hold is left out."""
    try:
        facts: dict[str, Any] = dict(json.loads((folder / FACTS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise QuantKVError(f"cannot read {folder / FACTS}: {error}") from error
    weights = f" (weights {facts['weights']}, computed in {facts['dtype']})" if facts.get("weights") else ""
    digest = f" (sha256 {facts['text_sha256'][:DIGITS]})" if facts.get("text_sha256") else ""
    return (
        f"{facts.get('model')}{weights}. {facts.get('queries')} queries over {facts.get('context')} cached "
        f"tokens of {facts.get('text')}{digest}; errors relative to the root mean square of the exact tensor."
    )
