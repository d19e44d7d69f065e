"""The sweep file: what is legal, and what a user reads when something is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantkv.errors import QuantKVError
from quantkv.sweep.config import Sweep, load_config, validate
from quantkv.sweep.reading import apply_overrides, parse_yaml

PROTOCOL_EXAMPLE = """
schema: 1
models: [{id: smollm2-135m-instruct-q4_1, dtype: float32, attn: quantkv}]
formats: [fp16, fp8-e4m3, int8-channel, int8-head, int4-head, kivi-4, kivi-2, k.int8-channel@g32+v.int4-head]
policy: {sinks: 4, recent: 64, flush: 32}
contexts: [512, 2048, 4096]
batch_sizes: [1]
seeds: [0]
quality:
  text: python-docs
  protocol: {prefill: exact, score: 128, windows: 16, bos: per_window}
speed: {baseline: dynamic, rounds: 10, block: 8, fill: prefill, threads: 2}
memory: {isolate: process, phases: [prefill, decode]}
run: {executor: local, on_unsupported: skip, cell_timeout: 600, out: results/main}
report:
  {figures: [kl, ppl_ratio, memory, decode_ms], width: one-column, files: [png, pdf], tables: [md, tex, csv]}
"""


def raw(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, "models": "m", "formats": ["fp16"], "contexts": [64], "memory": {}} | changes


def problems(**changes: Any) -> list[str]:
    with pytest.raises(QuantKVError) as caught:
        validate(raw(**changes), where="s.yaml")
    return str(caught.value).splitlines()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return path


def test_the_protocol_example_is_legal(tmp_path: Path) -> None:
    sweep = load_config(write(tmp_path, PROTOCOL_EXAMPLE))
    assert [entry.label for entry in sweep.formats][-1] == "k.int8-channel@g32+v.int4-head"
    assert (sweep.quality.protocol.windows, sweep.speed.threads, sweep.run.on_unsupported) == (16, 2, "skip")


@pytest.mark.parametrize("name", ["main", "ci", "ablation"])
def test_shipped_configs_are_legal(name: str) -> None:
    assert load_config(Path(__file__).parents[1] / "configs" / f"{name}.yaml").run.out == f"results/{name}"


def test_scalars_stand_for_lists_of_one_and_doubles_count_once() -> None:
    sweep = validate(raw(formats="int8-head", contexts=[64, 64, 32], seeds=3))
    assert (sweep.formats[0].label, sweep.contexts, sweep.seeds) == ("int8-head", (64, 32), (3,))
    assert sweep.models[0].id == "m"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"contxts": [1]}, "s.yaml: contxts: unknown setting; did you mean 'contexts'?"),
        (
            {"quality": {"protocol": {"window": 4}}},
            "s.yaml: quality.protocol.window: unknown setting; did you mean 'quality.protocol.windows'?",
        ),
        ({"windows": 4}, "s.yaml: windows: unknown setting; did you mean 'quality.protocol.windows'?"),
        (
            {"models": [{"id": "m", "dtype": "float23"}]},
            "s.yaml: models.0.dtype: 'float23' is not one of float32, bfloat16, float16, float64, auto; "
            "did you mean 'float32'?",
        ),
        ({"contexts": ["512"]}, "s.yaml: contexts.0: must be a whole number, got '512'"),
        ({"contexts": [0]}, "s.yaml: contexts.0: must be greater than or equal to 1, got 0"),
        ({"contexts": []}, "s.yaml: contexts: must not be empty"),
        ({"contexts": [True]}, "s.yaml: contexts.0: must be a whole number, got True"),
        ({"quality": 3}, "s.yaml: quality: expected settings such as {text, protocol}, got 3"),
        (
            {"quality": {"protocol": {"prefill": "exakt"}}},
            "s.yaml: quality.protocol.prefill.0: 'exakt' is not one of exact, final, stream, chunk:<tokens>; "
            "did you mean 'exact'?",
        ),
        (
            {"speed": {"formats": ["int8-head"]}},
            "s.yaml: speed.formats: 'int8-head' is not among formats: fp16",
        ),
        (
            {"memory": {"zz": 1}},
            "s.yaml: memory.zz: unknown setting; legal here: isolate, phases, workers, formats",
        ),
        ({"schema": 2}, "s.yaml: schema: 2 is not one of 1"),
        ({"schema": "1"}, "s.yaml: schema: '1' is not one of 1"),
        ({"seeds": 2**63}, f"s.yaml: seeds.0: must be less than {2**63}, got {2**63}"),
        ({"run": {"out": ""}}, "s.yaml: run.out: must not be empty"),
        (
            {"formats": [{"name": "m", "spec": "int4-head", "layers": {0: "fp16", "0": "int8-head"}}]},
            "s.yaml: formats.0: layers: one is given twice, as a number and as text: 0",
        ),
        (
            {"formats": ["fp16", "fp16"]},
            "s.yaml: formats: 'fp16' is given twice; give one of them another name",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_what_is_legal(changes: dict[str, Any], line: str) -> None:
    assert problems(**changes) == [line]


def test_every_problem_has_its_own_line() -> None:
    found = problems(contxts=[1], contexts=[-1], speed={"rounds": "ten"})
    assert [line.split(": ")[1] for line in found] == ["contxts", "contexts.0", "speed.rounds"]


def test_a_misspelt_key_is_not_reported_as_missing_too(tmp_path: Path) -> None:
    text = "schema: 1\nmodels: [m]\nfromats: [fp16]\nmemory: {}\n"
    with pytest.raises(QuantKVError) as caught:
        load_config(write(tmp_path, text))
    first, second = str(caught.value).splitlines()
    assert first.endswith("fromats: unknown setting; did you mean 'formats'?")
    assert second.endswith("contexts: is required")


def test_zero_bits_are_answered_with_the_legal_numbers() -> None:
    (line,) = problems(formats=["int0-head"])
    assert "'int0-head': 0 is no legal number of bits; legal: 2, 3, 4, 5, 6, 8;" in line
    assert "Presets" not in line


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("contexts=[0]", "--set contexts=[0]: contexts.0: must be greater than or equal to 1, got 0"),
        ("memory={zz: 1}", "--set memory={zz: 1}: memory.zz: unknown setting; legal here:"),
        ("memory.formats=[x]", "--set memory.formats=[x]: memory.formats: 'x' is not among formats"),
        ("run.out=x", "contexts.0: must be greater than or equal to 1, got -1"),
    ],
)
def test_a_wrong_value_is_blamed_on_what_set_it(tmp_path: Path, override: str, line: str) -> None:
    contexts = "[-1]" if override == "run.out=x" else "[64]"
    path = write(tmp_path, f"{{schema: 1, models: m, formats: fp16, memory: {{}}, contexts: {contexts}}}")
    expected = line if line.startswith("--set") else f"{path}: {line}"
    with pytest.raises(QuantKVError) as caught:
        load_config(path, [override])
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("int4-haed", "int4-head"), ("int0-head", "int8-head"), ("kivi2", "kivi-2")]
)
def test_an_unknown_format_is_reported_with_the_nearest(name: str, suggestion: str) -> None:
    (line,) = problems(formats=["fp16", name])
    assert line.startswith("s.yaml: formats.1: ")
    assert f"did you mean {suggestion}" in line.replace("'", "")


def test_nothing_to_measure_is_an_error() -> None:
    (line,) = problems(memory=None)
    assert "nothing to measure" in line


def test_a_missing_section_is_not_measured() -> None:
    assert validate(raw()).kinds == ("memory",)
    assert validate(raw(quality={}, memory=None)).kinds == ("quality",)


def test_duplicate_keys_are_errors_at_any_depth(tmp_path: Path) -> None:
    text = "schema: 1\nmodels: [m]\nspeed: {rounds: 1, block: 8, rounds: 20}\n"
    with pytest.raises(QuantKVError, match=r"line 3: 'rounds' is given twice"):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "\tx: 1"])
def test_broken_yaml_is_one_line_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(QuantKVError) as caught:
        load_config(write(tmp_path, text))
    assert "\n" not in str(caught.value) and "line" in str(caught.value)


def test_files_that_are_missing_or_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match=r"cannot read .*: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(QuantKVError, match="expected a mapping"):
        load_config(write(tmp_path, "- 1\n"))


def settings(*overrides: str) -> Sweep:
    return validate(apply_overrides(raw(), overrides))


def test_overrides_are_yaml_values_laid_over_the_file() -> None:
    sweep = settings(
        "contexts=[512,1024]", "run.out=elsewhere", "quality.protocol.windows=4", "formats.0=int8-head"
    )
    assert (sweep.contexts, sweep.run.out, sweep.quality.protocol.windows) == ((512, 1024), "elsewhere", 4)


def test_an_override_can_drop_a_kind() -> None:
    assert settings("quality={}", "memory=null").kinds == ("quality",)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("contexts", "expected key=value"),
        ("=3", "expected key=value"),
        ("contexts=[512", "--set contexts="),
        ("quality.protocol.window=4", "did you mean 'quality.protocol.windows'"),
        ("contexts=abc", "must be a whole number"),
        ("schema.x=1", "schema holds the single value 1"),
        ("formats.7=fp16", "formats is a list of 1"),
    ],
)
def test_a_wrong_override_is_an_error(override: str, message: str) -> None:
    with pytest.raises(QuantKVError) as caught:
        settings(override)
    assert message in str(caught.value)


def test_overrides_leave_the_original_alone() -> None:
    original = parse_yaml("{a: {b: [1]}}", where="x")
    assert apply_overrides(original, ["a.b.0=2"]) == {"a": {"b": [2]}}
    assert original == {"a": {"b": [1]}}


def test_layers_and_names_make_a_format() -> None:
    entry = {"name": "mixed", "spec": "int4-head", "layers": {"0-1": "fp16", -1: "int8-head"}}
    (found,) = validate(raw(formats=[entry])).formats
    assert found.label == "mixed"
    assert str(found.with_policy()) == "int4-head+l0-1.fp16+l-1.int8-head"


def test_a_policy_fills_what_the_string_leaves_open() -> None:
    sweep = validate(raw(formats=["int4-head", "int4-head+r128", "kivi-2", "fp16"]))
    specs = [entry.with_policy(sinks=2, recent=16, flush=64) for entry in sweep.formats]
    assert [(s.sinks, s.key.recent, s.key.flush) for s in specs] == [
        (2, 16, 64),
        (2, 128, 64),
        (0, 0, 128),
        (0, 0, 1),
    ]


def test_text_is_a_name_a_path_or_a_data_set() -> None:
    quality = {"text": {"hf": "Salesforce/wikitext", "name": "wikitext-2-raw-v1"}}
    text = validate(raw(quality=quality)).quality.text
    assert text.argument == {
        "hf": "Salesforce/wikitext",
        "name": "wikitext-2-raw-v1",
        "split": "test",
        "column": "text",
    }
    assert validate(raw(quality={"text": "a/file.txt"})).quality.text.argument == "a/file.txt"
    for wrong in ({"split": "test"}, 5, "", None):
        assert "give python-docs" in problems(quality={"text": wrong})[0]


@pytest.mark.parametrize(
    "empty",
    [{"formats": []}, {"contexts": []}, {"speed": {"formats": []}}, {"retrieval": {"tasks": []}}],
    ids=str,
)
def test_an_empty_list_is_one_clear_line(empty: dict[str, Any]) -> None:
    (line,) = problems(**empty)
    assert line.endswith(": must not be empty")


def test_what_is_given_twice_counts_once_and_one_value_is_a_list() -> None:
    found = validate(raw(contexts=[512, 256, 512], retrieval={"depths": 0.5, "tasks": "needle"}))
    assert found.contexts == (512, 256) and found.retrieval.depths == (0.5,)


@pytest.mark.parametrize(
    ("merged", "expected"),
    [
        ("{<<: *m, id: b}", ("b", "bfloat16", "sdpa")),
        ("{<<: *m, id: b, dtype: float16}", ("b", "float16", "sdpa")),
        ("{<<: [{dtype: float64, id: c}, *m]}", ("c", "float64", "sdpa")),
    ],
)
def test_merge_keys_merge_and_what_stands_beside_them_wins(
    tmp_path: Path, merged: str, expected: tuple[str, str, str]
) -> None:
    text = f"models: [&m {{id: a, dtype: bfloat16, attn: sdpa}}, {merged}]"
    path = write(tmp_path, f"{text}\nschema: 1\nformats: fp16\ncontexts: 64\nmemory: {{}}\n")
    first, second = load_config(path).models
    assert (second.id, second.dtype, second.attn) == expected
    assert (first.id, first.dtype, first.attn) == ("a", "bfloat16", "sdpa")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", 1000), ("+4", 4), ("-1", -1), ("0", 0), ("0x10", 16), ("0b11", 3), (".5", 0.5),
        ("1.5e3", 1500.0), ("true", True), ("False", False), ("null", None), ("~", None),
        ("yes", "yes"), ("No", "No"), ("on", "on"),
        ("2024-01-01", "2024-01-01"), ("12e4567", "12e4567"), ("=", "="), ("'0200'", "0200"), ("0x_", "0x_"),
    ],
)  # fmt: skip
def test_plain_words_are_what_they_look_like(text: str, value: Any) -> None:
    (found,) = parse_yaml(f"[{text}]", where="s.yaml")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        *((word, "octal") for word in ("0200", "010", "00", "-0o17", "08")),
        *((word, "base 60") for word in ("1:30", "12:30:45", "-1:05", "190:20:30.15")),
        *((word, "not finite") for word in (".inf", "-.Inf", ".nan", ".NaN")),
        ("None", "write null"),
        ("!!int abc", "invalid literal"),
    ],
)
def test_what_may_be_meant_in_two_ways_is_refused_by_its_line(
    tmp_path: Path, word: str, problem: str
) -> None:
    path = write(tmp_path, f"schema: 1\n# a line\ncontexts:\n  - 64\n  - {word}\n")
    with pytest.raises(QuantKVError, match=problem) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert word == "!!int abc" or f"line 5: {word} " in str(caught.value)
    with pytest.raises(QuantKVError, match=rf"--set contexts=.*{problem}"):
        apply_overrides({}, [f"contexts=[{word}]"])


def test_a_merge_key_or_a_number_written_otherwise_is_a_key_given_twice(tmp_path: Path) -> None:
    for text, key in (("<<: {a: 1}\n<<: {b: 1}\n", "'<<'"), ("16: a\n0x10: b\n", "16")):
        with pytest.raises(QuantKVError, match=f"line 2: {key} is given twice"):
            load_config(write(tmp_path, text))


def test_words_for_yes_and_no_are_settings_where_one_is_asked_for_and_names_elsewhere(tmp_path: Path) -> None:
    text = "schema: 1\nmodels: on\nformats: fp16\ncontexts: 64\nmemory: {}\nreport: {html: off}\n"
    sweep = load_config(write(tmp_path, text), ["run.out=no"])
    assert (sweep.models[0].id, sweep.report.html, sweep.run.out) == ("on", False, "no")


def test_no_number_is_infinite() -> None:
    (line,) = problems(generation={"temperature": "1e999"})
    assert line.startswith("s.yaml: generation.temperature: must be a finite number")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &a {<<: *a}", "nested too deeply, as by an alias that contains itself"),
        ("a: 1\n<<: 3", "line 2: << takes a mapping or a list of mappings"),
        ("<<: [{a: 1}, [b]]", "line 1: << takes a mapping or a list of mappings"),
        ("<<: {? [a] : 1}", "line 1: a key must be a plain value"),
    ],
)
def test_what_cannot_be_merged_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(QuantKVError) as caught:
        parse_yaml(text, where="s.yaml")
    assert str(caught.value) in (f"s.yaml, {problem}", f"s.yaml: {problem}")


def test_models_with_maps_of_devices_are_told_apart() -> None:
    maps = [{"": "cpu"}, {"": "cpu"}, {"a": 0, "b": "cpu"}]
    found = validate(raw(models=[{"id": "m", "device_map": given} for given in maps])).models
    assert [entry.device_map for entry in found] == maps[1:]
