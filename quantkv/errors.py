"""The two exceptions a user may see: a wrong setting, and a right one that cannot be served here.

Both are ``ValueError``, so library users need no new name; the command line turns them into
one line and exit code 2.
"""

from __future__ import annotations


class QuantKVError(ValueError):
    """A wrong name, value, file or setting; the message says which values are legal."""


class UnsupportedError(QuantKVError):
    """A legal setting that this model, device or library release cannot run; a sweep may skip the cell."""


def first_line(error: BaseException) -> str:
    """What an error of another library says, without the explanations that follow a whole line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])
