"""The planner: bytes from a configuration alone against real caches, to the byte; limits; the command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from default_specs import A_FEW, DEFAULT_SPECS, PRESETS
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import live_bytes, token_ids
from support.architectures import tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from typer.testing import CliRunner, Result

import quantkv
from quantkv import QuantizedCache, QuantKVError, UnsupportedError, cache_argument, parse_spec
from quantkv.cache.footprint import Footprint, cache_footprint
from quantkv.cache.layer_shapes import LayerShape, TensorShape
from quantkv.commands.cli import app
from quantkv.measurements.memory.worker import measure, weights_bytes
from quantkv.models import random_model
from quantkv.models.loading import load_config
from quantkv.planner import plan
from quantkv.planner.planning import largest, longest
from quantkv.planner.probe import probe
from quantkv.planner.sizes import both_sizes, machine_memory, parse_size
from quantkv.planner.table import plan_table

FAMILIES = (
    "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "phi3", "gpt2", "falcon", "gpt_bigcode",
    "starcoder2", "deepseek_v3", "deepseek_v32", "gpt_oss", "llama4_text", "qwen3_next", "jamba", "lfm2",
    "gemma3n_text", pytest.param("falcon_h1", marks=pytest.mark.slow),
)  # fmt: skip
"""Grouped, multi-query, one key per head, latent, indexed, sliding, chunked, sinks; with linear, Mamba and
convolution layers; both in one layer."""
CALLS = (37, 1, 9, 1, 1)
LONG = (150, 1)
ROWS = Path(__file__).parents[1] / "experiments/smollm2/rows"
LAYER = LayerShape(
    "DynamicLayer", key=TensorShape(2, 32, torch.float32), value=TensorShape(2, 32, torch.float32)
)


def run(model: Any, cache: Any, rows: int, calls: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Feed calls of tokens to a model; after each the length, the call's length and the bytes alive."""
    ids, length = token_ids(rows, sum(calls), vocab=100), 0
    for call in calls:
        options: dict[str, Any] = {cache_argument(model): cache, "use_cache": True}
        with torch.no_grad():
            model(input_ids=ids[:, length : length + call], **options)
        length += call
        yield length, call, alive(cache)


def alive(cache: Any) -> int:
    """Bytes that can be reached from a cache, without the numbers that transformers wraps into tensors."""
    wrapped = (vars(layer).get("_sliding_window_tensor") for layer in cache.layers)
    return live_bytes(cache) - sum(t.nbytes for t in wrapped if t is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_cache_holds_what_was_planned_without_weights(family: str) -> None:
    model = tiny_model(family)
    shape = probe(model.config, torch.float32)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.weights_nbytes == weights_bytes(model)
    for rows, calls in ((1, CALLS), (3, LONG)):
        cache = DynamicCache(config=model.config)
        footprint = cache_footprint(shape.layers, cache)
        for length, call, held in run(model, cache, rows, calls):
            assert footprint.nbytes(length, rows, call) == held, (length, call)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_cache_holds_what_was_planned(family: str) -> None:
    """The model itself fills the cache, in several calls."""
    model = tiny_model(family)
    layers = probe(model.config, torch.float32).layers
    for text in ("int4-head", "kivi-2", "k8v4+r8+f16+s2+k8+sliding", *A_FEW[:2]):
        if (made := packed(model.config, layers, text)) is None:
            continue
        cache, footprint = made
        for length, call, held in run(model, cache, 2, LONG):
            assert footprint.nbytes(length, 2, call) == cache.nbytes == held, (text, length)


def packed(config: Any, layers: Any, text: str) -> tuple[QuantizedCache, Footprint] | None:
    """An empty cache and its footprint; None where the format does not fit the model's (narrow) heads."""
    try:
        cache = QuantizedCache(config, text)
        footprint = cache_footprint(layers, cache)
        footprint.nbytes(1)
    except QuantKVError:
        return None
    return cache, footprint


WIDE = ("random-llama", "random-gemma3", "random-gpt2")


@pytest.mark.parametrize("name", [*WIDE, "gpt_bigcode", "deepseek_v3", "jamba", "llama4_text"])
def test_every_format_at_many_lengths_and_batches(name: str) -> None:
    """Keys and values go to the caches directly; states of other layers are left out here."""
    config = (random_model(name) if name in WIDE else tiny_model(name)).config
    layers = probe(config, torch.float32).layers
    states = sum(layer.states for layer in layers)
    served = 0
    for text in DEFAULT_SPECS:
        for rows, calls in ((1, (1, 30, 1, 100, 1, 1, 300)), (2, (517, 1))):
            if (made := packed(config, layers, text)) is None:
                continue
            (cache, footprint), length = made, 0
            for call in calls:
                append(cache, layers, rows, call)
                length += call
                planned = footprint.nbytes(length, rows, call) - rows * states
                assert cache.nbytes == planned, (text, rows, length)
            served += 1
    assert served == 2 * len(DEFAULT_SPECS) if name in WIDE else served > len(DEFAULT_SPECS)


def append(cache: QuantizedCache, layers: tuple[LayerShape, ...], rows: int, tokens: int) -> None:
    for index, layer in enumerate(layers):
        if layer.key is not None and layer.value is not None:
            key, value = (torch.randn(rows, t.heads, tokens, t.width) for t in (layer.key, layer.value))
            cache.update(key, value, index)


@pytest.mark.parametrize("text", ["dynamic", "int4-head"])
@pytest.mark.parametrize("family", ["jamba", "gemma3_text"])
def test_a_memory_cell_of_layers_that_stay_exact(family: str, text: str, tmp_path: Path) -> None:
    """Bytes are those right after the prompt; the 16-bit cache beside them has the states as they are."""
    model = tiny_model(family)
    model.save_pretrained(tmp_path)
    job = {
        "model": {"name": str(tmp_path)},
        "spec": text,
        "context": 100,
        "batch": 2,
        "steps": 3,
        "ids": None,
    }
    section = measure(job | {"phases": ["prefill"], "threads": 1})["memory"]
    layers = probe(model.config, torch.float32).layers
    states = sum(layer.states for layer in layers)
    plain = Footprint.of((layer, None) for layer in layers).nbytes(100, 2, call=100)
    assert section["baseline_16bit_bytes"] == (plain - 2 * states) // 2 + 2 * states
    assert section["predicted_bytes"] == section["held_bytes"]
    assert (section["held_bytes"] == plain) == (text == "dynamic")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_exact_tokens_are_planned_in_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    model = random_model("random-gemma3", dtype=dtype)
    shape = probe(model.config, dtype)
    assert shape.weights_nbytes == weights_bytes(AutoModelForCausalLM.from_config(model.config, dtype=dtype))
    cache = QuantizedCache(model.config, "int4-head")
    footprint = cache_footprint(shape.layers, cache)
    for length, call, held in run(model, cache, 2, CALLS):
        assert footprint.nbytes(length, 2, call) == held


def test_bytes_by_hand() -> None:
    """80 layers, 8 heads of 128, 32768 tokens at 16 bits: 80 · 2 · 8 · 128 · 2 · 32768 = 10.7 GB."""
    config = AutoConfig.for_model(
        "llama", num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28672, vocab_size=128256, dtype="float16", max_position_embeddings=131072,
    )  # fmt: skip
    found = plan(config, ["int4-head"], memory="200GB", context=32768)
    plain, packed = found.rows
    assert plain.bytes_total == plain.bytes_per_sequence == 80 * 2 * 8 * 128 * 2 * 32768 == 10_737_418_240
    assert both_sizes(10_737_418_240) == "10.74 GB (10.00 GiB)"
    assert packed.bytes_per_token == 80 * 2 * 8 * (128 // 2 + 4)
    matrices = 8192 * (8192 * 2 + 1024 * 2 + 28672 * 3) + 2 * 8192
    assert found.parameters == 80 * matrices + 2 * 128256 * 8192 + 8192
    assert found.cache_room == 200 * 10**9 - found.weights_bytes
    assert plain.longest_context == found.cache_room // (80 * 2 * 8 * 128 * 2)
    assert plain.largest_batch == found.cache_room // 10_737_418_240


@pytest.mark.parametrize("path", sorted(ROWS.glob("memory-*.json")), ids=lambda path: path.stem[:-13])
def test_bytes_that_were_measured(path: Path) -> None:
    """The published rows: what caches of SmolLM2-135M held in processes of their own."""
    row = json.loads(path.read_text())
    asked, measured = row["requested"], row["memory"]
    layer = TensorShape(3, 64, torch.float32)
    spec = None if asked["format"] == "dynamic" else parse_spec(asked["spec"])
    footprint = Footprint.of([(LayerShape("x", layer, layer), spec)] * 30)
    assert footprint.nbytes(asked["context"], asked["batch"]) == measured["held_bytes"]


def test_layers_by_hand() -> None:
    sliding = LayerShape("x", LAYER.key, LAYER.value, window=16)
    state = LayerShape("y", states=1000)
    both = Footprint.of([(LAYER, None), (sliding, None), (sliding, None), (state, None)])
    token = 2 * 2 * 32 * 4
    assert both.nbytes(0) == 0
    assert both.nbytes(10) == 3 * 10 * token + 1000
    assert both.nbytes(100, 3) == 3 * (100 * token + 2 * 16 * token + 1000)
    assert both.nbytes(100, call=100) == 3 * 100 * token + 1000
    assert both.token_nbytes == token


SPECS = st.sampled_from([*PRESETS, *A_FEW, "int4-head+r8+f16+s2+k8+q150", None])


@settings(max_examples=60, deadline=None)
@given(SPECS, st.integers(1, 40), st.integers(1, 40_000_000), st.integers(1, 4))
def test_limits_are_the_last_that_fit(text: str | None, layers: int, room: int, rows: int) -> None:
    spec = None if text is None else parse_spec(text)
    footprint = Footprint.of([(LAYER, spec)] * layers)
    fits = longest(footprint, room, rows)
    assert fits is not None
    assert fits == 0 or footprint.nbytes(fits, rows) <= room
    assert footprint.peak_nbytes(fits + 1, rows) > room
    count = largest(footprint, room, 500)
    assert count is not None
    assert count == 0 or footprint.nbytes(500, count) <= room
    assert footprint.peak_nbytes(500, count + 1) > room


@pytest.mark.parametrize(
    "text", ["int4-head+r8+f16+s2+k8+q150", "kivi-2", "int8-channel", "int4-head@w300.ctr"]
)
def test_the_peak_is_the_most_ever_held(text: str) -> None:
    footprint = Footprint.of([(LAYER, parse_spec(text)), (LAYER, parse_spec("int4-head+q99"))])
    most = 0
    for length in range(1, 600):
        most = max(most, footprint.nbytes(length))
        assert footprint.peak_nbytes(length) == most, length


def test_bounded_layers_never_fill_memory() -> None:
    footprint = Footprint.of([(LayerShape("x", LAYER.key, LAYER.value, window=16), None)])
    assert longest(footprint, footprint.nbytes(1000)) is None
    assert longest(footprint, footprint.nbytes(1000) - 1) == 15
    assert largest(Footprint.of([(LayerShape("y"), None)]), 10, 100) is None


def test_weights_that_do_not_fit_leave_nothing() -> None:
    found = plan("random-llama", ["fp16"], memory="1MB")
    assert found.cache_room < 0
    assert [(row.longest_context, row.largest_batch) for row in found.rows] == [(0, 0)] * 2


def test_weights_in_another_precision_and_an_allowance() -> None:
    plain = plan("random-llama", ["fp16"], memory="1GB")
    assert plain.weights_dtype == "float32"
    half = plan("random-llama", ["fp16"], memory="1GB", weights_dtype="bf16", allowance="100MB")
    buffers = plain.weights_bytes - 4 * plain.parameters
    assert half.weights_bytes == 2 * plain.parameters + buffers
    assert half.rows[0].bytes_total == plain.rows[0].bytes_total
    assert half.cache_room == 10**9 - 10**8 - half.weights_bytes
    assert plan("random-llama", ["fp16"], memory="1GB", weights_dtype="4.5").weights_bytes == -int(
        -plain.parameters * 4.5 // 8
    )


def test_formats_limit_add_and_come_once() -> None:
    names = [row.format for row in plan("random-llama", memory="1GB").rows]
    assert names == ["dynamic", *PRESETS]
    more = plan("random-llama", ["presets", "int6-head", "int4-head"], memory="1GB")
    assert [row.format for row in more.rows] == [*names, "int6-head"]
    few = plan("random-llama", [parse_spec("int4-head")], memory="1GB").to_frame()
    assert list(few["format"]) == ["dynamic", "int4-head"] and few["bytes_total"].notna().all()


def test_what_a_model_cannot_take_says_why() -> None:
    narrow = AutoConfig.for_model("llama", hidden_size=80, num_attention_heads=2, num_key_value_heads=2,
                                  intermediate_size=8, num_hidden_layers=2, vocab_size=8)  # fmt: skip
    rows = {row.format: row for row in plan(narrow, memory="1GB").rows}
    assert rows["int4-g32"].bytes_total is None and "40" in rows["int4-g32"].why
    assert rows["int4-head"].bytes_total is not None and not rows["int4-head"].why
    partly = plan(random_model("random-gemma3").config, ["int4-head"], memory="1GB").rows[1]
    assert partly.layers_quantized == 1 and partly.why.startswith("exact layers (0): sliding window of 64")
    with pytest.raises(UnsupportedError, match="only its model knows"):
        plan(tiny_model("deepseek_v4").config, memory="1GB")


def test_one_family_of_linear_layers_only() -> None:
    rows = plan(tiny_model("mamba").config, ["int4-head"], memory="1GB").rows
    assert rows[0].bytes_per_token == 0 and rows[0].longest_context is None
    assert rows[1].bytes_total is None and "no layer" in rows[1].why


def test_names_of_configurations(tmp_path: Path) -> None:
    config = random_model("random-qwen3").config
    config.save_pretrained(tmp_path)
    found = [load_config(str(path)).to_dict() for path in (tmp_path, tmp_path / "config.json")]
    assert found[0] == found[1] and found[0]["num_key_value_heads"] == 2
    assert plan(tmp_path, ["fp16"], memory="1GB").rows[0].bytes_total == 2 * 2 * 2 * 32 * 4 * 8192
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="cannot read the configuration"):
        load_config(tmp_path)
    with pytest.raises(QuantKVError, match="no such file"):
        load_config(tmp_path / "other.gguf")


@pytest.mark.parametrize("formats", [[], "int4-head"])
def test_formats_that_are_no_list_are_refused(formats: Any) -> None:
    with pytest.raises(QuantKVError, match=r"formats must be a list, such as \['int4-head'\]"):
        plan("random-llama", formats)


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        QuantKVError, match=r"no configuration for 'someone/absent-model'.*as a hub id"
    ) as error:
        load_config("someone/absent-model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("24GB", 24_000_000_000), ("24 GiB", 24 * 2**30), ("1.5kb", 1500), ("0B", 0), ("2tib", 2 * 2**40)]
    + [("9007199.254740993GB", 9007199254740993)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["24", "24G", "GB", "-1GB", "1e9GB", "24 Gb s", "nanGB", "٣GB"])
def test_sizes_without_a_clear_unit_are_refused(text: str) -> None:
    with pytest.raises(QuantKVError, match="24GB or 24GiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "unknown dtype"),
        ({"weights_dtype": "four"}, "bits per parameter"),
        *(({"weights_dtype": bits}, "bits per parameter") for bits in ("-1", "0", "nan", "1e30", True)),
        *(({name: 10**30}, f"{name} must be .* at most 2147483648") for name in ("context", "batch")),
        *(({name: value}, f"{name} must be") for name in ("context", "batch") for value in (-1, 1e30, True)),
        *(({"memory": value}, "a size in bytes must be") for value in (float("nan"), 1e30, "9" * 400 + "GB")),
        ({"allowance": "9223372036855TB"}, "at most 9223372036854775808"),
        ({"context": 0}, "context must be"),
        ({"batch": 0}, "batch must be"),
        ({"memory": -5}, "at least 0"),
        ({"formats": ["int4-hed"]}, "did you mean 'int4-head'"),
    ],
)
def test_wrong_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        plan("random-llama", **{"memory": "1GB"} | options)


@pytest.mark.parametrize(
    ("allowance", "words"), [(0, "the weights alone need"), (10**9, "weights and allowance need")]
)
def test_what_does_not_fit_is_named(allowance: int, words: str) -> None:
    found = plan("random-llama", ["fp16"], memory=0, allowance=allowance)
    lines = [part for part in plan_table(found) if isinstance(part, str)]
    assert any(line.startswith(words) for line in lines)


def test_this_machine_has_memory() -> None:
    found = machine_memory()
    limit = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 1 << 60
    assert 2**28 < found.nbytes <= limit and found.where
    assert plan("random-llama", ["fp16"]).memory_bytes == found.nbytes


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_command_prints_both_units_and_what_is_left_out() -> None:
    result = command(
        "random-llama", "--memory", "1GB", "-f", "int4-head", "--context", "4096", "--batch", "2"
    )
    assert result.exit_code == 0, result.output
    assert (
        "GB (1e9)" in result.output
        and "GiB (2^30)" in result.output
        and "1.000 GB (0.9313 GiB)" in result.output
    )
    line = next(line for line in result.output.splitlines() if line.startswith("dynamic"))
    assert line.split()[1:3] == ["1,024", f"{2 * 4096 * 1024:,}"]
    assert "Not counted: activations" in result.output and "--allowance" in result.output
    assert "131,072 positions" in result.output


def test_the_command_prints_json_alone() -> None:
    result = command("random-gemma3", "--memory", "1GB", "--json")
    found = json.loads(result.stdout)
    expected = quantkv.plan("random-gemma3", memory="1GB")
    assert found == json.loads(json.dumps(expected.to_dict()))
    assert found["layers"] == {"window of 64": 1, "full attention": 1}


def test_the_page_runs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "plan.md").read_text()
    scope: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], scope)
    assert len(scope["found"].rows) == len(PRESETS) + 2


def test_the_command_says_in_one_line_what_is_wrong() -> None:
    result = command("random-llama", "--memory", "24G")
    assert result.exit_code == 2 and result.stderr.startswith("quantkv: size '24G'; legal")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_figure_has_a_line_per_format_and_the_limit(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"sub/plan.{kind}"
    result = command(
        "random-llama", "--memory", "10MB", "-f", "int4-head", "-f", "kivi-2", "--plot", str(path)
    )
    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 2000
    if kind == "svg":
        text = path.read_text()
        assert all(f'id="{name}"' in text for name in ("format:DynamicCache", "format:kivi-2", "memory"))


def test_the_figure_shows_what_was_planned() -> None:
    from quantkv.planner.figure import draw_plan

    found = plan("random-llama", ["int4-head"], memory="10MB", batch=2)
    (ax,) = draw_plan(found).axes
    lines = {line.get_gid(): line for line in ax.lines}
    xs, ys = lines["format:DynamicCache"].get_data()
    assert [round(y * 1e9) for y in ys] == [2 * 1024 * x for x in xs]
    assert set(lines["memory"].get_ydata()) == {found.cache_room / 1e9}


@pytest.mark.parametrize("name", ["plan.jpg", "plan"])
def test_figures_of_unknown_kinds_are_refused(tmp_path: Path, name: str) -> None:
    result = command("random-llama", "--memory", "1GB", "-f", "fp16", "--plot", str(tmp_path / name))
    assert result.exit_code == 2 and "png, pdf, svg" in result.stderr
    assert os.listdir(tmp_path) == []
