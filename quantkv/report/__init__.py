"""Tables and figures from result rows, and from nothing else.

``write_report`` makes the files, ``terminal_table`` prints the summary. Both are loaded when first used, so
that importing this package needs neither pandas nor matplotlib. May be imported by sweeps and commands.
"""

from __future__ import annotations

from typing import Any

__all__ = ["terminal_table", "write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from quantkv.report.write import write_report

        return write_report
    if name == "terminal_table":
        from quantkv.report.terminal import terminal_table

        return terminal_table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
