"""The code blocks of a Markdown page, and how a test runs them.

A comment just before a block says what a test does otherwise with it:

    <!-- not run: REASON -->            skipped, with that reason
    <!-- run as                         each line replaces text before the block runs: smaller numbers,
    windows=16 => windows=1             a model that needs no network
    -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n+|<!-- run as\n(?P<rules>(?:[^\n]+ => [^\n]*\n)+)-->\n+)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """`text` as printed; `reason` says why it is not run; `rules` are replacements made before it runs."""

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    rules: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def program(self) -> str:
        """What a test runs. AssertionError where a rule replaces nothing."""
        text = self.text
        for printed, run in self.rules:
            assert printed in text, f"{self.place}: nothing says {printed!r}"
            text = text.replace(printed, run)
        return text

    @property
    def commands(self) -> list[str]:
        """The `quantkv` commands of a shell block, without the comments behind them."""
        lines = re.sub(r"\\\n\s*", "", self.program).splitlines()
        bare = (re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("$ ") for line in lines)
        return [line for line in bare if line.startswith("quantkv ")]


def blocks(root: Path, page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (root / page).read_text()
    return [_block(page, text, match) for match in BLOCK.finditer(text)]


def outside_blocks(root: Path, page: str) -> str:
    """The page without its blocks and the comments before them."""
    return BLOCK.sub("", (root / page).read_text())


def _block(page: str, text: str, match: re.Match[str]) -> Block:
    lines = (match["rules"] or "").splitlines()
    printed = [line.partition(" => ") for line in lines]
    return Block(
        page,
        text.count("\n", 0, match.start("text")) + 1,
        match["language"],
        match["text"],
        match["reason"] or "",
        tuple((old, new) for old, _, new in printed),
    )
