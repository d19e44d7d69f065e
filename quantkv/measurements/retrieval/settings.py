"""The section `retrieval` of a sweep file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from quantkv.measurements.retrieval.haystack import TAIL, check_room
from quantkv.measurements.retrieval.tasks import DEPTHS, SAMPLES, task_names
from quantkv.rows.axes import Axes, PackedSettings
from quantkv.rows.cell import Cell
from quantkv.rows.settings import ModelEntry, NonNegative, OneOrMore, Positive, TextSettings
from quantkv.wording.suggestions import not_one_of


def _check_task(value: str) -> str:
    if value not in task_names():
        raise ValueError(not_one_of(value, task_names()))
    return value


class RetrievalSettings(PackedSettings):
    """``samples`` questions per depth, task and context; no fact lies in the last ``tail`` tokens."""

    kind = "retrieval"
    tasks: OneOrMore[Annotated[str, AfterValidator(_check_task)]] = tuple(task_names())
    samples: Positive = SAMPLES
    depths: OneOrMore[Annotated[float, Field(ge=0, le=1)]] = DEPTHS
    tail: NonNegative = TAIL
    text: TextSettings = TextSettings(source="python-docs")

    def cells(self, sweep: Axes, model: ModelEntry) -> Iterator[Cell]:
        protocol = self.model_dump(mode="json", include={"samples", "depths", "tail"})
        for task in self.tasks:
            said = {"text": self.text.label, "task": task}
            yield from self.packed_cells(sweep, model, said | protocol)

    def check(self, sweep: Axes) -> None:
        check_room(min(sweep.contexts), self.tail)
        super().check(sweep)
