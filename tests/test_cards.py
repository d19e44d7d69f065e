"""The card of a format: what its declaration says, in words."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from quantkv import QuantKVError
from quantkv.codecs import CodecFamily, Sharing, register_codec
from quantkv.codecs.affine import Affine
from quantkv.codecs.maps.map import Map
from quantkv.codecs.registry import FAMILIES, MAPS
from quantkv.commands.cli import app
from quantkv.planner.card import format_card, in_words


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["formats", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_keys_and_values_apart() -> None:
    """Bits: 4 and two 16-bit numbers for each token and head. 260 = 4 sinks and 256 tokens."""
    card = format_card("int4-head@unrope.ctr")
    assert card["bits_packed"] == {"64": 4.5, "128": 4.25, "256": 4.125}
    keys, values = card["keys"], card["values"]
    assert (keys["stored_as"], values["stored_as"]) == ("int4-head@unrope.ctr", "int4-head")
    assert keys["formula"] == "x̂ = unrope⁻¹(ctr⁻¹(scale · code + zero))"
    assert values["formula"] == "x̂ = scale · code + zero"
    assert keys["share_a_scale"] == "token-head: all channels of one token of one head"
    assert list(keys["maps"]) == ["unrope", "ctr"] and values["maps"] == {}
    assert (keys["fit_tokens"], keys["packed_from"]) == (256, 260)
    assert (values["fit_tokens"], values["packed_from"]) == (0, 0)
    assert keys["legal_options"] == ["sym", "fp16", "bf16", "fp32", "near"]
    assert keys["legal_sharings"] == ["head", "token", "token-all", "channel", "chunk-head", "chunk"]
    assert "unrope" in keys["legal_maps"] and "unrope" not in values["legal_maps"]


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("int4-head@sym", "x̂ = scale / 7 · (code − 8)"),
        ("int4-head@sym.near", "x̂ = scale · (code − 8)"),
        ("fp8-e4m3", "x̂ = scale / 448 · e4m3(code)"),
        ("bf16", "x̂ = value"),
        ("int8-head@norm.had", "x̂ = norm⁻¹(had⁻¹(scale · code + zero))"),
    ],
)
def test_a_number_is_said_as_it_is_made(text: str, formula: str) -> None:
    assert format_card(text)["keys"]["formula"] == formula


def test_a_norm_takes_sixteen_bits_of_each_token_and_head() -> None:
    assert format_card("int4-head@norm")["bits_packed"] == {"64": 4.75, "128": 4.375, "256": 4.1875}


def test_what_is_stored_has_its_width() -> None:
    card = format_card("lm3@norm")["keys"]
    assert card["fields"] == {"codes": "3 bits", "norm": "float16"}
    assert card["share_a_scale"] == "no scale"
    assert "codes 3 bits, norm float16" in told("lm3@norm")


def test_a_codec_that_shares_otherwise_than_its_word_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAMILIES, "known", dict(FAMILIES.known))
    register_codec(CodecFamily("runs", 4, lambda sharing, options: Affine(4, Sharing(channels=16))))
    assert format_card("runs")["keys"]["share_a_scale"] == "16 channels of 1 token of one head"


def test_where_a_width_is_impossible_the_reason_stands() -> None:
    bits = format_card("int4-token@g128")["bits_packed"]
    assert str(bits["64"]).startswith("a group of 128 channels does not divide head_dim 64")
    assert (bits["128"], bits["256"]) == (4.25, 4.25)
    assert "none at 64: a group of 128 channels" in told("int4-token@g128")


def test_the_command_prints_it() -> None:
    lines = [" ".join(line.split()) for line in told("k8v4@ctr.w64").splitlines()]
    assert lines[0].startswith("k8v4@ctr.w64: bits on full pages 6.5 at head_dim 64, 6.25 at")
    assert "keys int8-head@ctr.w64" in lines and "values int4-head" in lines
    assert "packed 32 tokens at a time, and none before 68 are cached" in lines
    assert "row state fitted on each row's 64 tokens after its sinks" in lines
    assert "keys and values fp16" in [" ".join(line.split()) for line in told("fp16").splitlines()]
    assert json.loads(told("int4-head", "--json")) == format_card("int4-head")


def test_a_wrong_format_is_one_line() -> None:
    result = CliRunner().invoke(app, ["formats", "int4-head@hda"])
    assert result.exit_code == 2 and "did you mean 'had'?" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_every_map_has_words() -> None:
    for map, _ in MAPS.known.values():
        assert len(in_words(map)) > 20 and "\n" not in in_words(map)

    class Mine(Map):
        """Everything doubled. And more."""

    assert in_words(Mine) == "Everything doubled"


def test_a_card_is_of_a_format() -> None:
    with pytest.raises(QuantKVError, match="unknown format"):
        format_card("nf4")
