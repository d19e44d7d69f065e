"""`quantkv.inspect`: every layer and head of a model, as the cache really stores it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from biased import bias_keys
from support.architectures import tiny_model
from transformers import DynamicCache
from typer.testing import CliRunner

import quantkv
from quantkv import QuantizedCache, QuantKVError, UnsupportedError
from quantkv.commands.cli import app
from quantkv.measurements.inside.capture import capture
from quantkv.measurements.inside.prediction import (
    damage_table,
    layer_damage,
    predicted_damage,
    rank_correlation,
)
from quantkv.models import random_model

IDS = torch.randint(256, (160,), generator=torch.Generator().manual_seed(0))
WINDOW = "+r8+f16+s2"


def look(model, formats=(), context=128, queries=16):
    return quantkv.inspect(model, IDS, formats, context=context, queries=queries)


@pytest.mark.parametrize("family", ["random-llama", "random-qwen2", "random-mistral", "random-gemma3"])
def test_errors_are_those_of_the_real_cache(family):
    """Keys and values of an exact pass, packed by the real cache, against a row per quantized layer and
    head."""
    model = random_model(family)
    errors = look(model, ["int4-head"]).errors.set_index(["layer", "head"])
    plain = DynamicCache()
    model(IDS[None, -144:][:, :128], use_cache=True, **{quantkv.cache_argument(model): plain})
    stored = QuantizedCache(model.config, "int4-head")
    window = stored.spec.key_window
    packed = slice(window.sinks, window.boundary(128))
    for index, layer in enumerate(stored.layers):
        if layer not in stored.quantized_layers:
            assert index not in errors.index.get_level_values("layer")
            continue
        exact = (plain.layers[index].keys, plain.layers[index].values)
        layer.update(*exact)
        for name, x, store in zip(("key_error", "value_error"), exact, layer.stores, strict=True):
            x, decoded = x[0, :, packed], store.view().read(0, 128)[0, :, packed]
            for head in range(2):
                expected = (decoded[head] - x[head]).norm() / x[head].norm()
                assert errors.loc[(index, head), name] == pytest.approx(expected.item(), rel=1e-3)
        assert (errors.loc[index, "packed_keys"] == packed.stop - packed.start).all()


def test_sliding_layers_are_seen_where_they_are_packed(tiny_gemma3):
    """The sliding window of 64 shows at most 63 earlier tokens, of which the last 8 are exact."""
    errors = look(tiny_gemma3, [f"int4-head{WINDOW}+sliding"]).errors
    sliding = errors[errors["layer"] == 0]
    assert (sliding["packed_keys"] == 63 - 8 - (128 - 8) % 16).all()
    assert (sliding["output_error"] > 0).all()


def test_statistics_have_a_row_per_layer_tensor_and_head(tiny_llama):
    seen = look(tiny_llama)
    assert len(seen.statistics) == 2 * 2 * 2 and len(seen.channels) == 2 * 2 * 2 * 32
    assert seen.errors.empty and set(seen.maps) == {(i, t) for i in (0, 1) for t in ("key", "value")}
    hottest = seen.channels.groupby(["layer", "tensor", "head"])["absmax"].max()
    assert np.allclose(hottest, seen.statistics.set_index(["layer", "tensor", "head"])["absmax"].sort_index())


def test_a_biased_layer_stands_out_and_only_where_keys_share_per_token():
    model = random_model("random-qwen2", num_hidden_layers=4)
    bias_keys(model, [1], 400.0)
    seen = look(model, [f"{f}{WINDOW}" for f in ("int4-head", "int4-channel@g16")])
    keys = seen.statistics[seen.statistics["tensor"] == "key"].groupby("layer")["outlier_ratio"].min()
    assert keys[1] > 10 * keys.drop(1).max()
    damage = layer_damage(seen.errors).unstack("format")
    head, channel = damage.columns
    assert damage[head].idxmax() == 1 and damage.loc[1, head] > 5 * damage.loc[1, channel]


def test_the_pass_is_exact_and_nothing_stays_switched(tiny_llama):
    before = tiny_llama.config._attn_implementation
    one, other = look(tiny_llama, ["int4-head"]), look(tiny_llama, ["kivi-2", "int4-head"])
    assert tiny_llama.config._attn_implementation == before
    rest = other.errors[other.errors["format"] == "int4-head"].reset_index(drop=True)
    pd.testing.assert_frame_equal(one.errors, rest)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"context": 0}, "at least 1"),
        ({"queries": 0}, "at least 1"),
        ({"context": 1000}, "1016 token ids, there are 160"),
        ({"formats": ["kivi-2"], "context": 100}, "kivi-2 packs nothing at context 100"),
        ({"formats": "int4-head"}, "must be a list"),
        ({"formats": ["int9-head"]}, "int9"),
    ],
)
def test_wrong_settings_say_what_is_legal(tiny_llama, options, message):
    with pytest.raises(QuantKVError, match=message):
        look(tiny_llama, **options)


def test_a_model_that_is_too_short_is_refused():
    with pytest.raises(QuantKVError, match="limit of 64"):
        look(random_model("random-llama", max_position_embeddings=64))


def test_a_model_that_computes_attention_itself_is_refused():
    with pytest.raises(UnsupportedError, match="computes attention itself"):
        capture(tiny_model("bloom"), IDS % 128, lambda seen: None)


def errors_frame(rows):
    columns = ["format", "layer", "head", "output_error", "output_rms"]
    return pd.DataFrame(rows, columns=columns)


def test_predicted_damage_by_hand():
    """Layer 0: heads of power 1 and 9 with squared errors .01 and .04: (.01 + .36) / 10; layer 1: .25."""
    errors = errors_frame([("a", 0, 0, 0.1, 1.0), ("a", 0, 1, 0.2, 3.0), ("a", 1, 0, 0.5, 7.0)])
    assert layer_damage(errors).tolist() == pytest.approx([0.037, 0.25])
    assert predicted_damage(errors).to_dict() == pytest.approx({"a": 0.287})


def test_rank_correlation_by_hand():
    """Ranks 1 2 3 4 against 1 3 2 4: 1 − 6 · 2 / (4 · 15) = .8; an unmeasured format does not count."""
    rows = [(name, 0, 0, error, 1.0) for name, error in zip("abcde", (0.1, 0.2, 0.3, 0.4, 0.5))]
    table = damage_table(errors_frame(rows), {"a": 1e-4, "b": 3e-3, "c": 2e-3, "d": 5.0})
    assert rank_correlation(table) == pytest.approx(0.8)
    assert rank_correlation(table.head(2)) is None
    assert rank_correlation(damage_table(errors_frame(rows), {})) is None


def command(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.long("draws three figures, each in two files")
def test_the_command_writes_tables_and_figures(tmp_path: Path):
    out = tmp_path / "seen"
    formats = [f"{name}{WINDOW}" for name in ("int8-head", "int4-head", "int2-head")]
    options = [part for name in formats for part in ("--format", name)]
    result = command(
        "inspect",
        "random-llama",
        *options,
        "--context",
        "96",
        "--queries",
        "8",
        "--windows",
        "1",
        "--out",
        str(out),
    )
    assert result.exit_code == 0, result.output
    names = {"errors", "magnitudes", "damage"}
    assert {path.name for path in out.iterdir()} == (
        {"errors.csv", "statistics.csv", "channels.csv", "inspection.json"}
        | {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    )
    facts = json.loads((out / "inspection.json").read_text())
    assert [row["format"] for row in facts["damage"]] == formats
    assert facts["rank_correlation"] == pytest.approx(1.0) and "rank correlation 1.00" in result.output
    assert facts["dtype"] == "float32" and len(facts["text_sha256"]) == 64
    assert len(pd.read_csv(out / "errors.csv")) == 3 * 2 * 2
    assert all(name in result.output for name in formats)


def test_the_command_without_formats_shows_statistics_alone(tmp_path: Path):
    result = command("inspect", "random-llama", "--context", "64", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "errors.png").exists() and (tmp_path / "magnitudes.pdf").exists()


def test_a_layer_that_is_not_there_is_wrong_input(tmp_path: Path):
    result = command("inspect", "random-llama", "--layer", "2", "--out", str(tmp_path / "no"))
    assert result.exit_code == 2 and "legal: 0 to 1" in result.output
    assert not (tmp_path / "no").exists()


def test_predicted_damage_ranks_formats_as_kl_does(smollm2):
    model, tok = smollm2
    names = ["int8-head", "fp8-e4m3", "int4-channel", "int4-head", "kivi-2"]
    seen = quantkv.inspect(model, tok, names, context=512, queries=32)
    rows = quantkv.evaluate(model, tok, names, contexts=[512], windows=2).rows
    kl = {row["requested"]["format"]: row["quality"]["kl_mean"] for row in rows}
    assert rank_correlation(damage_table(seen.errors, kl)) >= 0.9
