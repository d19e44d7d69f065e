"""Model families: a sample is run, and the published table says something about every one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.architectures import INTRODUCTION, NO_PASS, Support, examine, markdown
from support.modes import MODES, ModeResults

PAGE = Path(__file__).parent.parent / "docs" / "support.md"
SAMPLE = {
    "llama": "fused", "qwen2": "fused", "qwen3_moe": "fused", "gemma2": "fused", "gemma3_text": "fused",
    "gpt_oss": "fused", "mistral": "fused", "phi3": "fused", "gpt2": "fused", "opt": "fused", "gptj": "fused",
    "cohere2": "fused", "olmo2": "fused", "llama4_text": "fused", "bert": "fused", "whisper": "fused",
    "lfm2": "fused", "gemma4_text": "fused", "bloom": "decoding", "gpt_neo": "decoding",
    "falcon": "decoding", "xglm": "decoding",
    "deepseek_v3": "decoding", "glm4_moe_lite": "decoding", "diffllama": "decoding", "trocr": "decoding",
    "jamba": "fused, partly", "qwen3_next": "fused, partly", "kimi_linear": "decoding, partly",
    "mamba": "exact only", "openai-gpt": "not tried",
}  # fmt: skip
STATEFUL = {"prompt lookup", "assisted", "candidates"}
"""What transformers itself cannot do where some layers keep a running state."""


def test_the_page_begins_with_the_introduction() -> None:
    assert PAGE.read_text().startswith(INTRODUCTION) and not re.search(r"\S  +\S", INTRODUCTION)


@pytest.mark.parametrize("family", SAMPLE)
def test_family_is_served_as_the_table_says(family: str) -> None:
    found = examine(family)
    assert found.status == SAMPLE[family], found
    assert markdown([found]).splitlines()[2] in PAGE.read_text().splitlines()
    _, _, refused = PAGE.read_text().partition(NO_PASS)
    assert bool(found.no_pass) == (family in re.findall(r"[\w-]+", refused))
    assert f"- {found.no_pass}: " in refused or not found.no_pass
    if found.modes is not None:
        assert not found.modes.unequal
        assert set(found.modes.impossible) == (STATEFUL if "partly" in found.status else set())
        assert found.modes.equal == len(MODES) - len(found.modes.impossible)


def test_a_family_that_transformers_cannot_run_says_why() -> None:
    assert examine("reformer").status == "not tried"
    assert "axial_pos_embds" in examine("reformer").reason


def test_the_table_covers_forty_families_and_gives_reasons() -> None:
    cells = r"^\| (\S+) \| ([a-z, ]+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$"
    rows = re.findall(cells, PAGE.read_text(), re.MULTILINE)
    served = [row for row in rows if row[1].startswith(("fused", "decoding"))]
    assert len(served) >= 40
    assert all(
        reason.strip() for _, status, _, _, reason in rows if status in ("refused", "exact only", "not tried")
    )


def test_markdown_of_rows_and_what_is_missing() -> None:
    modes = ModeResults(9, {"beams": "other tokens"}, {"assisted": "ValueError: not with state, such as Toy"})
    rows = [
        Support("toy", "fused, partly", 1, 2, "one layer keeps its own", modes),
        Support("doll", "refused"),
        Support("bear", "decoding", 2, 2, no_pass="it computes attention itself"),
    ]
    lines = markdown(rows).splitlines()
    assert lines[2] == "| toy | fused, partly | 1 of 2 | 9 of 10 | one layer keeps its own |"
    assert lines[3] == "| doll | refused | — | — |  |"
    assert lines[5:] == [
        "", "Not equal:", "", "- beams (other tokens): toy",
        "", "Not by transformers itself:", "", "- assisted (ValueError: not with state): toy",
        "", NO_PASS, "", "- it computes attention itself: bear",
    ]  # fmt: skip
