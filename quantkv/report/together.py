"""One table and one figure across models and dtypes, where a report is asked for them.

Studies stand together if they share everything else: text, protocol, machine. Formats are ranked within a
study, as in its own table; in a figure each study has a panel, with the same colours in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from quantkv.report.figures import figure_title, kinds_of
from quantkv.report.pictures import Picture
from quantkv.report.tables import by_context, latex_blocks, markdown_blocks
from quantkv.studies.captions import marks, sentences
from quantkv.studies.column import Column
from quantkv.studies.columns import Block, printed_columns, rule
from quantkv.studies.notes import remarks
from quantkv.studies.study import Study
from quantkv.wording.parts import SEPARATOR, told_of_each, words

PARTS = ("model", "dtype")
OF_A_MODEL = ("revision", "fingerprint")


@dataclass(frozen=True)
class Joint:
    """Studies that stand together, and what each is called among them."""

    stem: str
    studies: tuple[Study, ...]
    labels: tuple[str, ...]

    @property
    def columns(self) -> list[Column]:
        batched = any(study.batch > 1 for study in self.studies)
        records = [record for study in self.studies for record in study.records()]
        return printed_columns(records, batched=batched)


def joints(found: Iterable[Study], parts: Iterable[str]) -> list[Joint]:
    """The studies that differ in ``parts`` alone; none where that leaves each alone."""
    free = {*parts, *OF_A_MODEL}
    groups: list[list[Study]] = []
    for study in found:
        near = next((group for group in groups if _agree(group[0], study, free)), None)
        if near is None:
            groups.append([study])
        else:
            near.append(study)
    several = [tuple(group) for group in groups if len(group) > 1]
    stems = ["together", *(f"together-{index}" for index in range(2, len(several) + 1))]
    return [Joint(stem, group, tuple(series_labels(group))) for stem, group in zip(stems, several)]


def series_labels(found: Sequence[Study]) -> list[str]:
    """What sets each study apart from the others: ``float32``, ``llama · bfloat16``."""
    parts = [{name: study.identity[name] for name in (*PARTS, *OF_A_MODEL)} for study in found]
    return [
        SEPARATOR.join(words(name, own[name]) for name in names if own[name])
        for own, names in zip(parts, told_of_each(parts))
    ]


def tables_together(joint: Joint, endings: Iterable[str]) -> dict[str, str]:
    """File name to text; the summary's CSV holds all studies anyway."""
    shown = (_blocks(joint), joint.columns, _caption(joint))
    writers = {"md": lambda: markdown_blocks(*shown), "tex": lambda: latex_blocks(*shown, joint.stem)}
    return {f"{joint.stem}.{ending}": writers[ending]() for ending in endings if ending in writers}


def pictures_together(joint: Joint, wanted: Iterable[str]) -> Iterator[Picture]:
    """The figures that at least two of the studies have numbers for, of these studies."""
    for name in wanted:
        if kinds_of(name) and name != "overview":
            from quantkv.report.plots import can_draw, draw_together

            own = [pair for pair in zip(joint.studies, joint.labels) if can_draw(pair[0], name)]
            if len(own) > 1:
                drawn = Joint(f"{name}-{joint.stem}", *zip(*own))
                says = f"{figure_title(name, drawn.studies[0])} A panel for each model, with axes of its own."
                said = said_together(drawn, kinds_of(name))
                draw = partial(draw_together, drawn.studies, drawn.labels, name)
                yield Picture(name, drawn.stem, says, said, draw)


def said_together(joint: Joint, kinds: Iterable[str] | None = None) -> str:
    """How the numbers were made: what holds for all once, the rest under the name of each."""
    wanted = None if kinds is None else tuple(kinds)
    own = [sentences(study, wanted) for study in joint.studies]
    shared = [sentence for sentence in own[0] if all(sentence in said for said in own)]
    apart = [
        f"{label}: {sentence}"
        for label, said in zip(joint.labels, own)
        for sentence in said
        if sentence not in shared
    ]
    return " ".join([*apart, *shared])


def _caption(joint: Joint) -> str:
    said = dict.fromkeys(sentence for study in joint.studies for sentence in marks(study))
    bold = rule(joint.columns, _blocks(joint))
    ranked = f"{bold} Each model is ranked by itself." if bold else ""
    flags = [
        f"{label}: {flag}"
        for label, study in zip(joint.labels, joint.studies)
        for flag in remarks(study.records(), with_failures=True, with_quality=True)
    ]
    noted = f"Notes: {'; '.join(flags)}." if flags else ""
    return " ".join(filter(None, (said_together(joint), *said, ranked, noted)))


def _blocks(joint: Joint) -> list[Block]:
    """Context by context, the formats of each study in turn."""
    blocks = [
        (context, label, group)
        for label, study in zip(joint.labels, joint.studies)
        for context, group in by_context(study.records())
    ]
    return sorted(blocks, key=lambda block: block[0])


def _agree(one: Study, other: Study, free: set[str]) -> bool:
    """What only one of them has measured does not keep them apart."""
    shared = (one.identity.keys() & other.identity.keys()) - free
    return all(one.identity[name] == other.identity[name] for name in shared)
