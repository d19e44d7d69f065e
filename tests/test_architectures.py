"""Model families: a sample is run, and the published table says something about every one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quantkv.architectures import INTRODUCTION, Support, examine, markdown

PAGE = Path(__file__).parent.parent / "docs" / "support.md"
SAMPLE = {
    "llama": "fused", "qwen2": "fused", "qwen3_moe": "fused", "gemma2": "fused", "gemma3_text": "fused",
    "gpt_oss": "fused", "mistral": "fused", "phi3": "fused", "gpt2": "fused", "opt": "fused",
    "bloom": "decoding",
    "deepseek_v3": "decoding", "diffllama": "decoding", "qwen3_next": "fused, partly", "mamba": "exact only",
}  # fmt: skip


def test_the_page_begins_with_the_introduction() -> None:
    assert PAGE.read_text().startswith(INTRODUCTION) and not re.search(r"\S  +\S", INTRODUCTION)


@pytest.mark.parametrize("family", SAMPLE)
def test_family_is_served_as_the_table_says(family: str) -> None:
    found = examine(family)
    assert found.status == SAMPLE[family], found
    assert markdown([found]).splitlines()[-1] in PAGE.read_text().splitlines()


def test_a_family_that_transformers_cannot_run_says_why() -> None:
    assert examine("reformer").status == "not tried"
    assert "is_decoder" in examine("reformer").reason


def test_the_table_covers_forty_families_and_gives_reasons() -> None:
    rows = re.findall(r"^\| (\S+) \| ([a-z, ]+) \| ([^|]+) \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    served = [row for row in rows if row[1].startswith(("fused", "decoding"))]
    assert len(served) >= 40
    assert all(
        reason.strip() for _, status, _, reason in rows if status in ("refused", "exact only", "not tried")
    )


def test_markdown_of_a_row() -> None:
    row = Support("toy", "fused, partly", 1, 2, "one layer keeps its own")
    assert markdown([row]).splitlines()[-1] == "| toy | fused, partly | 1 of 2 | one layer keeps its own |"
