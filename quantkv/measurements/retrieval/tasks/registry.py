"""The tasks by name."""

from __future__ import annotations

from quantkv.errors import QuantKVError
from quantkv.measurements.retrieval.tasks.base import Task
from quantkv.measurements.retrieval.tasks.induction import Induction
from quantkv.measurements.retrieval.tasks.needle import Needle
from quantkv.measurements.retrieval.tasks.passkey import Passkey
from quantkv.measurements.retrieval.tasks.records import Records
from quantkv.measurements.retrieval.tasks.variables import Variables

_TASKS: dict[str, Task] = {}


def register_task(task: Task) -> None:
    """Make a task known under its name."""
    if task.name in _TASKS:
        raise QuantKVError(f"a task named {task.name!r} is registered already")
    _TASKS[task.name] = task


def task_names() -> list[str]:
    return list(_TASKS)


def task_named(name: str) -> Task:
    """The task of this name; QuantKVError naming the legal ones otherwise."""
    if name not in _TASKS:
        raise QuantKVError(f"unknown task {name!r}; legal tasks: {', '.join(_TASKS)}")
    return _TASKS[name]


for _task in (
    Passkey(),
    Needle("needle"),
    Needle("multi-key", keys=4),
    Variables(),
    Induction(),
    Records(),
):
    register_task(_task)
