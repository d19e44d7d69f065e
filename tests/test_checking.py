"""`quantkv check`: verdicts, their reasons, what to try instead, and exit codes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from biased import bias_keys, save_biased
from typer.testing import CliRunner

import quantkv
from quantkv import QuantKVError, parse_spec
from quantkv.checking.judge import judge
from quantkv.checking.reasons import (
    Diagnosis,
    advice,
    alternatives,
    blamed_tensors,
    heavy_layers,
    hot_keys,
    layer_ranges,
    layer_words,
)
from quantkv.checking.run import FormatCheck, fitted
from quantkv.commands.cli import app
from quantkv.data import Text
from quantkv.instruments.verdict import Finding, Thresholds, Verdict
from quantkv.models import byte_tokenizer, random_model

WINDOW = "+r8+f16+s2+k0"
TEXT = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
GOOD = {
    "kl_mean": 0.001,
    "kl_low": None,
    "kl_high": None,
    "nll": 3.0,
    "top1_agreement": 0.99,
    "packed_read_fraction": 0.9,
    "bits_packed": 4.5,
    "bits_cache_16": 6.0,
}


def check(model, formats, **options):
    settings = {"text": TEXT, "context": 256, "windows": 2, "score": 32} | options
    return quantkv.check(model, byte_tokenizer(), formats, **settings)


def command(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.parametrize(
    "kl, verdict",
    [
        (0.0, Verdict.FIT),
        (0.0199, Verdict.FIT),
        (0.02, Verdict.CAUTION),
        (0.0999, Verdict.CAUTION),
        (0.1, Verdict.UNFIT),
        (math.inf, Verdict.UNFIT),
        (math.nan, Verdict.UNFIT),
    ],
)
def test_where_verdicts_begin(kl, verdict):
    assert Thresholds().verdict(kl) is verdict


def test_exit_codes_are_told_apart_from_those_of_other_commands():
    codes = [verdict.exit_code for verdict in Verdict]
    assert codes == [0, 10, 11, 3] and max(Verdict.FIT, Verdict.UNFIT, Verdict.CAUTION) is Verdict.UNFIT


@pytest.mark.parametrize("fit, caution", [(0.2, 0.1), (0, 0.1), (-1, 1), (0.1, math.inf), (math.nan, 1)])
def test_thresholds_that_make_no_sense(fit, caution):
    with pytest.raises(QuantKVError, match="0 < fit <= caution"):
        Thresholds(fit, caution)


@pytest.mark.parametrize(
    "change, verdict, words",
    [
        ({}, Verdict.FIT, "mean KL 0.001"),
        ({"kl_mean": 0.05}, Verdict.CAUTION, "mean KL 0.05"),
        ({"kl_low": 0.0005, "kl_high": 0.03}, Verdict.FIT, "crosses a threshold"),
        ({"kl_mean": math.nan}, Verdict.UNFIT, "not finite"),
        ({"nll": math.inf}, Verdict.UNFIT, "not finite"),
        ({"top1_agreement": 0.79}, Verdict.CAUTION, "below 80%"),
        ({"packed_read_fraction": 0.4}, Verdict.CAUTION, "only 40% of what was attended to"),
        ({"bits_cache_16": 13.1}, Verdict.FIT, "mean KL"),
        ({"bits_cache_16": 13.2}, Verdict.CAUTION, "most of the saving is not reached"),
        ({"bits_packed": 32.0, "bits_cache_16": 32.0}, Verdict.FIT, "mean KL"),
    ],
)
def test_what_numbers_say(tiny_llama, change, verdict, words):
    """Full pages save 11.5 bits: 16 − 13.1 is more than a quarter of that, 16 − 13.2 is less."""
    found = judge(GOOD | change, tiny_llama, parse_spec("int4-head"), Thresholds())
    assert max(f.verdict for f in found) is verdict
    assert any(words in f.words for f in found if f.verdict is verdict)


def test_a_format_without_kernels_and_one_without_an_engine(tiny_llama, monkeypatch):
    monkeypatch.setattr("quantkv.cache.quantized.QuantizedCache.engine", "reference")
    for isa, verdict in (("v3", Verdict.CAUTION), (None, Verdict.FIT)):
        monkeypatch.setattr("quantkv.checking.judge.native.isa", lambda isa=isa: isa)
        (found,) = [
            f for f in judge(GOOD, tiny_llama, parse_spec("int4-head"), Thresholds()) if "engine" in f.words
        ]
        assert found.verdict is verdict


@pytest.mark.parametrize(
    "family, spec, layers, verdict",
    [
        ("random-gemma3", "int4-head", "1 of 2", Verdict.FIT),
        ("random-gemma3:num_hidden_layers=3", "int4-head", "2 of 3", Verdict.CAUTION),
        ("random-llama:num_hidden_layers=4", "int4-head+l0.fp16", "1 of 4", Verdict.FIT),
    ],
)
def test_exact_layers_are_counted(family, spec, layers, verdict):
    found = judge(GOOD, random_model(family), parse_spec(spec), Thresholds())
    (exact,) = [f for f in found if "stay exact" in f.words]
    assert exact.words.startswith(layers) and exact.verdict is verdict


def test_floats_that_keep_everything_exact_have_no_exact_layers(tiny_llama):
    quality = GOOD | {"bits_packed": 16.0, "bits_cache_16": 16.0}
    assert not [f for f in judge(quality, tiny_llama, parse_spec("fp16"), Thresholds()) if "exact" in f.words]


@pytest.mark.parametrize(
    "limit, expected",
    [
        (1152, (1024, 128)),
        (1151, (1023, 128)),
        (512, (448, 64)),
        (4, (3, 1)),
    ],
)
def test_short_models_are_checked_at_what_fits(limit, expected):
    """Short of 1152 positions an eighth of them, at most 128, is scored and the rest is context."""
    model = random_model("random-llama")
    model.config.max_position_embeddings = limit
    context, score, notes = fitted(model, 1024, 128)
    assert (context, score) == expected and bool(notes) == (expected != (1024, 128))
    assert all(str(limit) in note for note in notes)


@pytest.mark.parametrize(
    "damage, heavy",
    [
        ([1, 1, 1, 1], ()),
        ([10, 1, 0.5, 0.5], (0,)),
        ([5, 5, 0, 0, 0, 0, 0, 0], (0, 1)),
        ([0, 0, 0, 0, 0, 3, 0, 9], (5, 7)),
        ([2, 2, 2, 2, 0, 0, 0, 0], ()),
        ([1], (0,)),
    ],
)
def test_few_layers_that_hold_most_of_the_damage(damage, heavy):
    assert heavy_layers(pd.Series(damage, dtype=float)) == heavy


@pytest.mark.parametrize(
    "keys, values, blamed",
    [
        (0.5, 0.1, ("key",)),
        (0.1, 0.5, ("value",)),
        (0.3, 0.3, ("key", "value")),
        (0.19, 0.1, ("key", "value")),
    ],
)
def test_the_tensor_to_blame(keys, values, blamed):
    row = {"output_error_keys": keys, "output_error_values": values, "output_rms": 2.0}
    assert blamed_tensors(pd.DataFrame([row])) == blamed


def test_hot_key_channels_in_words():
    rows = [("key", 0, 49.6, 0.99), ("key", 1, 21.0, 0.9), ("key", 2, 19.9, 0.1), ("value", 3, 99.0, 0.1)]
    frame = pd.DataFrame(rows, columns=["tensor", "layer", "outlier_ratio", "hot_offset"])
    (words,) = hot_keys(frame)
    assert words.startswith("layers 0 and 1 have key channels up to 50 times the rest, nearly constant")
    assert "per channel or centre the keys" in words
    frame.loc[0, "hot_offset"] = 0.2
    assert "centre" not in hot_keys(frame)[0] and hot_keys(frame[2:]) == []


def test_layers_in_words_and_as_specs_write_them():
    assert [layer_words(x) for x in ([3], [0, 1], [0, 1, 5])] == [
        "layer 3",
        "layers 0 and 1",
        "layers 0, 1 and 5",
    ]
    assert layer_ranges([0, 1, 2, 5, 7, 8]) == ["0-2", "5", "7-8"]


def test_alternatives_are_legal_formats_near_the_one_that_hurts():
    spec = parse_spec("int4-head")
    found = alternatives(spec, Diagnosis((0, 1), ("key",), []))
    assert list(found) == ["int4-channel", "int4-head+l0-1.fp16", "k8v4"]
    kivi = alternatives(parse_spec("kivi-2"), Diagnosis((), ("key", "value"), []))
    assert [(s.key.bits, s.value.bits, s.sinks) for s in kivi.values()] == [(2, 2, 4), (4, 2, 0), (2, 4, 0)]
    for name, candidate in (found | kivi).items():
        assert parse_spec(name) == candidate


def test_advice_names_what_halves_the_damage_cheapest_first():
    predicted = {"own": 1.0, "a": 0.1, "b": 0.6, "c": 0.02, "d": 0.05}
    bits = {"a": 4.5, "b": 4.0, "c": 8.0, "d": 8.5}
    assert [line.split()[1] for line in advice(predicted, "own", bits)] == ["a:", "c:"]
    assert "10 times smaller" in advice(predicted, "own", bits)[0]


def test_biased_keys_are_unfit_for_a_scale_per_token_and_fit_for_one_per_channel():
    model = random_model("random-qwen2", num_hidden_layers=8)
    bias_keys(model, [0, 1], 400.0)
    answer = check(model, [f"{f}{WINDOW}" for f in ("int4-head", "int8-channel@g16")] + ["exact"])
    verdicts = [result.verdict for result in answer.formats]
    assert verdicts == [Verdict.UNFIT, Verdict.FIT, Verdict.FIT] and answer.verdict is Verdict.UNFIT
    bad, good, _ = answer.formats
    assert any(words.startswith("layers 0 and 1 have key channels up to") for words in bad.reasons)
    assert any("layers 0 and 1 hold" in words and "through keys" in words for words in bad.reasons)
    assert any("int4-channel" in words for words in bad.advice)
    assert not good.reasons and not good.advice


def test_a_format_that_packs_nothing_could_not_be_checked(tiny_llama):
    answer = check(tiny_llama, ["kivi-2", f"int8-head{WINDOW}"], context=96)
    bad, good = answer.formats
    assert (
        bad.verdict is Verdict.UNCHECKED and "no scored token reads a packed value" in bad.findings[0].words
    )
    assert good.verdict is not Verdict.UNCHECKED and answer.verdict.exit_code == 3


def test_json_holds_no_number_that_is_none():
    findings = [Finding(Verdict.UNFIT, "the model's output is not finite")]
    figures = {"kl_mean": math.nan, "kl_low": None}
    result = FormatCheck("a", parse_spec("int4-head"), findings, figures)
    found = result.to_dict()
    assert found["kl_mean"] is None and found["verdict"] == "unfit" and not result.can_be_explained


def test_no_formats_and_wrong_ones(tiny_llama):
    with pytest.raises(QuantKVError, match="no format"):
        check(tiny_llama, [])
    with pytest.raises(QuantKVError, match="must be a list"):
        check(tiny_llama, "int4-head")


def test_the_command_answers_in_words_and_its_exit_code(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT.text)
    options = ["--text", str(text), "--context", "256", "--windows", "2"]
    name = f"int8-head{WINDOW}"
    result = command("check", "random-llama", "--format", name, *options, "--fit", "1", "--caution", "2")
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "verdict: fit"
    assert "mean KL below 1 nats per token is fit, below 2 caution, else unfit" in result.stdout
    result = command("check", "random-llama", "--format", name, *options, "--fit", "1e-9", "--caution", "2")
    assert result.exit_code == 10 and result.stdout.splitlines()[-1] == "verdict: caution"
    result = command(
        "check", "random-llama", "-f", name, *options, "--fit", "1e-9", "--caution", "1e-9", "--json"
    )
    answer = json.loads(result.stdout)
    assert result.exit_code == 11 and answer["verdict"] == "unfit"
    assert answer["formats"][0]["format"] == name and answer["formats"][0]["kl_mean"] > 1e-9
    assert answer["thresholds"] == {"fit": 1e-9, "caution": 1e-9}


def test_wrong_input_is_found_before_a_model_is_loaded():
    code = (
        "import sys; from typer.testing import CliRunner; from quantkv.commands.cli import app; "
        "results = [CliRunner().invoke(app, ['check', 'no-model', *more]) for more in "
        "(['-f', 'int9-head'], ['-f', 'int4-head', '--fit', '1'])]; "
        "print([r.exit_code for r in results], 'transformers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[2, 2] False"


@pytest.mark.slow
def test_biased_keys_on_a_real_model(smollm2, tmp_path: Path):
    """SmolLM2 with large biases in two key channels of its first two layers, as Qwen2.5 has them."""
    folder = save_biased(*smollm2, tmp_path / "biased", [0, 1], 150.0)
    formats = ["int4-head", "int8-channel", "kivi-4"]
    options = [part for name in formats for part in ("--format", name)]
    result = command("check", str(folder), *options, "--context", "512", "--windows", "2", "--json")
    assert result.exit_code == 11, result.output
    answer = json.loads(result.stdout)
    assert [found["verdict"] for found in answer["formats"]] == ["unfit", "fit", "fit"]
    assert any(
        words.startswith("layers 0 and 1 have key channels") for words in answer["formats"][0]["reasons"]
    )
    assert any("int4-channel" in words for words in answer["formats"][0]["advice"])
