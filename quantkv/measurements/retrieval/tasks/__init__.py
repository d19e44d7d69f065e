"""Retrieval and copying: questions made from a seed about a context of an exact number of tokens.

A task is one file with a class that has a `name` and `make`; `register_task` makes it known by its name.
May be imported by retrieval and sweeps.
"""

from quantkv.measurements.retrieval.tasks.base import HEAD, TAIL, Haystack, Sample, Task, check_room
from quantkv.measurements.retrieval.tasks.registry import register_task, task_named, task_names

__all__ = [
    "HEAD",
    "TAIL",
    "Haystack",
    "Sample",
    "Task",
    "check_room",
    "register_task",
    "task_named",
    "task_names",
]
