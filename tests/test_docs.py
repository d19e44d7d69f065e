"""Every Python block of the README and the docs runs."""

import re
from pathlib import Path

import pytest

from quantkv.codecs import registry

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> str:
    """All Python blocks of a page as one program, as a reader would type them."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))


def test_the_example_codec_passes_the_contract_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "_FAMILIES", dict(registry._FAMILIES)
    )  # what the page registers is gone afterwards
    scope: dict = {}
    exec(compile(blocks("docs/adding-a-codec.md"), "docs/adding-a-codec.md", "exec"), scope)
    assert scope["spec"].bits_packed(head_dim=64, num_key_value_heads=3) == 4 + 16 / 64


@pytest.mark.real
def test_the_readme_runs(smollm2: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(compile(blocks("README.md"), "README.md", "exec"), scope)
    assert "about 6.6 bits per cached value" in blocks("README.md")
    assert "about 1830 tokens" in blocks("README.md")  # the text differs a little between Python versions
    assert scope["cache"].effective_bits == pytest.approx(6.6, abs=0.1)
    assert scope["prompt"].input_ids.shape[1] == pytest.approx(1830, abs=30)
