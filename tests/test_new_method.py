"""A new method is one short file: what the page on codecs prints, and everything that comes with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_blocks import blocks
from runs import logits_in_calls, token_ids, with_attention
from torch import Tensor
from typer.testing import CliRunner

from quantkv import QuantizedCache, QuantKVError, parse_spec, plugins, simulate
from quantkv.codecs import Place
from quantkv.codecs.registry import FAMILIES
from quantkv.commands.cli import app
from quantkv.models import random_model
from quantkv.plugins import import_file
from quantkv.testing import check_codec, round_trip

PROGRAM = blocks(Path(__file__).parent.parent, "docs/adding-a-codec.md")[0].text
MOST_LINES = 25
SMALL = "normal4+r8+f16+s2+k8"

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Imported as by `quantkv --import normal4.py`, and known in this test alone."""
    monkeypatch.setattr(FAMILIES, "known", dict(FAMILIES.known))
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    path = tmp_path / "normal4.py"
    path.write_text(PROGRAM)
    import_file(path)
    yield path


def filled(model: Any, length: int, rows: int = 2) -> tuple[QuantizedCache, Tensor]:
    cache, ids = QuantizedCache(model.config, SMALL), token_ids(rows, length)
    return cache, logits_in_calls(with_attention(model, "quantkv"), ids, cache, [length - 30] + [1] * 30)


def test_the_file_is_short() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= MOST_LINES


def test_it_is_read_and_printed() -> None:
    spec = parse_spec("k.normal4@had+v.normal4+r128+s2")
    assert str(spec) == "k.normal4@had+v.normal4+r128+s2"
    assert parse_spec(str(spec)) == spec
    assert str(parse_spec("normal4-head")) == "normal4"


def test_numbers_by_hand() -> None:
    """Quantiles (i + ½) / 16 of a normal distribution, over the largest of them (1.8627 deviations): the
    numbers of a token of one head are 1, 0.7076 (1.3180) and 0.0421 (0.0784) of its largest magnitude."""
    x = torch.tensor([4.0, 2.9, -2.9, 0.0001, -0.3]).expand(1, 1, 1, 5)
    wanted = torch.tensor([4.0, 2.8303, -2.8303, 0.1684, -0.1684])
    back = round_trip(parse_spec("normal4").key.at(Place("key", 1, 5)), x)
    assert torch.allclose(back.flatten(), wanted, atol=2e-3)


@pytest.mark.parametrize(("head_dim", "bits"), [(32, 4.5), (64, 4.25), (128, 4.125)])
def test_bits_are_those_of_its_fields(head_dim: int, bits: float) -> None:
    assert parse_spec("normal4").bits_packed(head_dim=head_dim, num_key_value_heads=3) == bits


def test_options_and_sharings_of_others_are_refused() -> None:
    with pytest.raises(QuantKVError, match="unknown option 'sym' in 'normal4@sym'; legal: none"):
        parse_spec("normal4@sym")
    with pytest.raises(
        QuantKVError, match=r"normal4 needs one of the sharing words token-head .-head., not 'channel'"
    ):
        parse_spec("normal4-channel@g32")


def test_the_native_engine_attends_to_it(tiny_llama: Any) -> None:
    cache, logits = filled(tiny_llama, 90)
    if not cache.engine.startswith("native"):
        pytest.skip(f"no native engine here: {cache.engine}")
    assert all(engine.startswith("native") for engine in cache.describe()["engine"])
    other = QuantizedCache(tiny_llama.config, SMALL)
    through_decoding = logits_in_calls(
        with_attention(tiny_llama, "sdpa"), token_ids(2, 90), other, [60] + [1] * 30
    )
    assert torch.allclose(logits, through_decoding, atol=1e-4)


def test_bytes_and_roll_back(tiny_llama: Any) -> None:
    cache, _ = filled(tiny_llama, 90)
    assert cache.nbytes == cache.predicted_nbytes()
    again, _ = filled(tiny_llama, 90)
    again.truncate(84)
    ids = token_ids(2, 90)
    both = [logits_in_calls(tiny_llama, ids[:, 84:], again, [6])]
    straight = QuantizedCache(tiny_llama.config, SMALL)
    both.append(logits_in_calls(tiny_llama, ids, straight, [60] + [1] * 24 + [6])[:, 84:])
    assert torch.allclose(*both, atol=1e-4)


def test_the_decode_exact_pass_is_its_decoding() -> None:
    model, ids = random_model("random-llama", dtype=torch.float64), token_ids(1, 90)
    cache = QuantizedCache(model.config, SMALL)
    literal = logits_in_calls(with_attention(model, "sdpa"), ids, cache, [60] + [1] * 30).log_softmax(-1)
    with simulate(model, SMALL, prefill=60):
        at_once = model(ids, use_cache=False).logits.log_softmax(-1)
    assert (literal - at_once).abs().max() <= 1e-6


def test_it_has_a_card(file: Path) -> None:
    run = CliRunner().invoke(app, ["--import", str(file), "formats", "normal4", "--json"])
    assert run.exit_code == 0, run.output
    card = json.loads(run.stdout)
    assert card["bits_packed"] == {"64": 4.25, "128": 4.125, "256": 4.0625}
    assert card["keys"]["formula"] == "x̂ = scale · table[code]"
    assert card["keys"]["share_a_scale"].startswith("token-head: all channels of one token of one head")
    assert card["keys"]["legal_options"] == []
    assert {"had", "norm", "ctr", "unrope"} <= set(card["keys"]["legal_maps"])


@pytest.mark.slow
def test_it_keeps_the_contract() -> None:
    check_codec(SMALL)
