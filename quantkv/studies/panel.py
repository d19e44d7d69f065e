"""A figure of a study: one axes, and nothing of the legend inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from quantkv.drawing.legend import Legend
    from quantkv.drawing.style import Style
    from quantkv.studies.study import Study

Draw = Callable[["Axes", "Study", dict[str, "Style"], "Legend"], None]


@dataclass(frozen=True)
class Panel:
    """How it is drawn, and from what: one of these ``numbers`` of a summary, or what ``holds`` looks for.

    ``title`` stands above it where a figure has several; ``inches`` is its height where its rows decide that.
    ``interval`` is the number of a summary that says whether there are intervals, and ``bars`` what a caption
    then says of them.
    """

    draw: Draw
    numbers: tuple[str, ...] = ()
    title: str = ""
    holds: Callable[[Study], bool] | None = None
    inches: Callable[[Study], float] | None = None
    interval: str = ""
    bars: str = ", with intervals."

    def can_draw(self, study: Study) -> bool:
        """Whether the study holds at least one number for it."""
        if self.holds is not None:
            return self.holds(study)
        return any(study.frame[name].notna().any() for name in self.numbers)
