"""The figure of memory."""

from quantkv.measurements.memory.held_figure import memory
from quantkv.studies.panel import Panel

PANELS = {"memory": Panel(memory, ("held_bytes",), "cache memory")}
