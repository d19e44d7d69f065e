"""The figures of a report by name: those of each kind, an overview of four of them, and inspections'.

Their names load no other library: sweep files are checked by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantkv.measurements.kind import kind
from quantkv.rows import kinds
from quantkv.studies.kind import studied

if TYPE_CHECKING:
    from quantkv.studies.page import Panel
    from quantkv.studies.study import Study

FILES = ("png", "pdf", "svg")
OTHER_NAMES = {"decode_tokens_per_s": "decode_tps"}
OVERVIEW = ("memory", "decode_tps", "ppl_ratio", "kl")
OWN = {
    "overview": "Memory, decode speed, perplexity ratio and KL divergence against context.",
    "layers": "Relative error of keys, values and attention output by layer and head.",
}
FIRST = (
    "pareto", "memory", "decode_ms", "decode_tps", "crossover", "ppl_ratio", "kl", "kl_by_position",
    "overview", "retrieval", "layers",
)  # fmt: skip
"""The order in which a report has them; those of other kinds come last."""


def titles() -> dict[str, str]:
    """What each figure shows, in the order of a report."""
    found = OWN | {name: text for own in kinds.names() for name, text in kind(own).figures.items()}
    return {name: found[name] for name in sorted(found, key=[*FIRST, *found].index)}


def of_studies() -> tuple[str, ...]:
    """Those of a study of several kinds."""
    return tuple(name for name in titles() if kinds_of(name))


def kinds_of(figure: str) -> tuple[str, ...]:
    """Whose rows a figure of a study draws; empty for the others."""
    names = OVERVIEW if figure == "overview" else (figure,)
    return tuple(own for own in studied() if any(name in kind(own).figures for name in names))


def panels() -> dict[str, Panel]:
    """How those of one axes are drawn."""
    return {name: panel for own in studied() for name, panel in kind(own).panels.items()}


def figure_title(figure: str, study: Study) -> str:
    """What a figure of the study shows, with intervals where it has any."""
    title, panel = titles()[figure], panels().get(figure)
    if panel and panel.interval and study.frame[panel.interval].notna().any():
        return title.removesuffix(".") + panel.bars
    return title
