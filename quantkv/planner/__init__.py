"""What fits: bytes of a model's cache under every format, the longest context and the largest batch, from a
configuration alone.

May be imported by measurements and whatever lies above them.
"""

from quantkv.planner.planning import Plan, plan

__all__ = ["Plan", "plan"]
