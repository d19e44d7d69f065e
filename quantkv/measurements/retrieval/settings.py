"""The section `retrieval` of a sweep file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from quantkv.measurements.retrieval.questions import DEPTHS, SAMPLES
from quantkv.measurements.retrieval.tasks import TAIL, task_names
from quantkv.rows.settings import NonNegative, OneOrMore, Positive, Section, TextSettings
from quantkv.wording.suggestions import not_one_of


def _check_task(value: str) -> str:
    if value not in task_names():
        raise ValueError(not_one_of(value, task_names()))
    return value


class RetrievalSettings(Section):
    """``samples`` questions per depth, task and context; no fact lies in the last ``tail`` tokens."""

    tasks: OneOrMore[Annotated[str, AfterValidator(_check_task)]] = tuple(task_names())
    samples: Positive = SAMPLES
    depths: OneOrMore[Annotated[float, Field(ge=0, le=1)]] = DEPTHS
    tail: NonNegative = TAIL
    text: TextSettings = TextSettings(source="python-docs")
