"""A figure that a report writes: the stem of its files, what it shows, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from quantkv.report.figures import figure_title, kinds_of
from quantkv.report.markup import latex_figure
from quantkv.studies.captions import caption
from quantkv.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
