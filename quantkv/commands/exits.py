"""What a command ends with. The one list: `quantkv --help` shows it, docs/cli.md holds the same."""

from __future__ import annotations

EXITS = {
    0: "done; nothing got worse",
    2: "wrong input, said in a line for each thing, or a file that cannot be read or written",
    3: "some cells failed, or could not be measured",
    10: "check: caution",
    11: "check: unfit",
    12: "compare: a number got worse",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output went away, as with `| head`; a sweep goes on without it",
}


def epilog() -> str:
    """One line for the end of the help."""
    return "Exit codes: " + ". ".join(f"{code} {words}" for code, words in EXITS.items()) + "."
