"""Benchmarks at tiny sizes: structure, arithmetic and agreement of the arms; nothing about real times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

from quantkv.bench import decode, machine, table
from quantkv.bench.attention import BASELINE, FOLDED, bench_attention
from quantkv.bench.decode import LEAST_STEPS, add_growth, bench_decode, clocked_updates, update_steps
from quantkv.bench.encode import bench_encode
from quantkv.bench.machine import MachineLimits, Rates
from quantkv.bench.report import add_limit, as_json, timed_row
from quantkv.bench.rounds import Arm, take_turns
from quantkv.bench.settings import AttentionSettings, DecodeSettings, EncodeSettings, Settings
from quantkv.bench.work import ModelWork
from quantkv.commands.cli import app
from quantkv.cores import cores
from quantkv.engines import native
from quantkv.instruments.statistics import ratios
from quantkv.models import random_model
from quantkv.peers import versions, worker
from quantkv.spec import parse_spec

STEADY = MachineLimits(Rates({1: 10e9}, 20e9), Rates({1: 10.5e9}, 20e9), "native")
FORMATS = ("int8-channel", "int4-head", "kivi-2")


@pytest.fixture(autouse=True)
def _small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROBE_BYTES", 1 << 20)


@pytest.fixture(scope="module")
def attention_report() -> dict[str, Any]:
    before, machine.PROBE_BYTES = machine.PROBE_BYTES, 1 << 20
    try:
        small = {"heads": 2, "query_heads": 4, "head_dim": 32, "tokens": (300, 420), "rounds": 3}
        return bench_attention(AttentionSettings(formats=FORMATS, **small))
    finally:
        machine.PROBE_BYTES = before


def quantkv_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def one_line(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


def named(rows: list[dict], name: str, **where: Any) -> dict:
    (row,) = (r for r in rows if r["name"] == name and all(r[key] == value for key, value in where.items()))
    return row


def check_machine(report: dict[str, Any]) -> None:
    """Everything a reader needs to judge a time is there and positive, and JSON keeps it."""
    limits = report["limits"]
    assert limits["peak_gmadd_s_before"] > 0 and limits["peak_gmadd_s_after"] > 0
    for when in ("before", "after"):
        assert all(rate > 0 for rate in limits[f"read_gb_s_{when}"].values())
    about = report["machine"]
    assert about["isa"] == native.isa() and about["torch"] == torch.__version__ and about["machine"]["cpu"]
    assert about["threads"] == report["settings"]["threads"]
    assert json.loads(as_json(report)) == report


def check_limits(row: dict[str, Any]) -> None:
    assert row["bytes"] > 0 and row["multiply_adds"] > 0 and row["limit_ms"] > 0
    assert row["k"] == pytest.approx(row["ms"]["median"] / row["limit_ms"])


# rounds and limits


def test_arms_take_turns_and_the_first_turn_is_not_counted() -> None:
    order: list[str] = []
    arms = [Arm(name, lambda name=name: order.append(name)) for name in "abc"]
    take_turns(arms, Settings(rounds=4), between=lambda: order.append("-"))
    turns = "".join(order).replace("-", "")
    assert len(turns) == 15 and order.count("-") == 15
    assert all(sorted(turns[i : i + 3]) == list("abc") for i in range(0, 15, 3))
    assert len({turns[i : i + 3] for i in range(0, 15, 3)}) > 1
    assert all(len(arm.seconds) == 4 for arm in arms)


def test_ratios_are_taken_round_by_round() -> None:
    found = ratios([2, 8, 2], [1, 2, 4])
    assert (found["median"], found["p10"]) == (2, pytest.approx(0.8))
    assert ratios([], [])["median"] is None and ratios([None, 3], [1, 2])["median"] == 1.5


def test_the_limit_is_the_slower_of_bytes_and_arithmetic() -> None:
    assert STEADY.seconds(10.25e9, 1, 1) == pytest.approx(1)
    assert STEADY.seconds(1, 40e9, 1) == pytest.approx(2)
    arm = Arm("a", lambda: None, touched=int(10.25e6), multiply_adds=1)
    arm.seconds = [0.002, 0.001, 0.003]
    row = timed_row(arm)
    add_limit(row, STEADY, 1)
    assert row["limit_ms"] == pytest.approx(1) and row["k"] == pytest.approx(2)
    assert row["gb_s"] == pytest.approx(10.25 / 2)
    assert row["ms"] == pytest.approx({"median": 2, "p10": 1.2, "p90": 2.8})


def test_a_drift_of_bandwidth_is_flagged() -> None:
    assert STEADY.flags == [] and STEADY.drift == pytest.approx(0.05)
    drifted = MachineLimits(Rates({1: 10e9, 2: 10e9}, 20e9), Rates({1: 10e9, 2: 8e9}, 20e9), "native")
    assert drifted.flags == ["memory bandwidth drifted by -20%"]


def test_limits_without_the_native_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", lambda: None)
    probe = machine.Probe()
    rates = probe.rates([1])
    assert rates.read[1] > 0 and rates.peak > 0
    assert "no native engine" in MachineLimits(rates, rates, probe.method).flags[0]


def test_an_instruction_set_is_chosen_for_a_while() -> None:
    usual = native.isa()
    if usual is None:
        pytest.skip("no native engine here")
    first = native.kernels().usable_isas()[0]
    with machine.instruction_set(first):
        assert native.isa() == first
    assert native.isa() == usual


# attention


def test_attention_has_every_arm_at_every_length(attention_report: dict[str, Any]) -> None:
    check_machine(attention_report)
    rows = attention_report["rows"]
    for tokens in (300, 420):
        names = {row["name"] for row in rows if row["tokens"] == tokens}
        exact = {BASELINE, FOLDED, "sdpa bf16 grouped", "sdpa bf16 folded", "sdpa fp32 repeated"}
        assert names == exact | set(FORMATS) | {f"decode {name}, sdpa" for name in FORMATS}
    for row in rows:
        check_limits(row)
        assert len(row["rounds_ms"]) == 3
    assert "only 3 rounds" in attention_report["flags"]


def test_attention_arms_agree_where_they_compute_the_same(attention_report: dict[str, Any]) -> None:
    for row in attention_report["rows"]:
        if row["kind"] == "quantkv":
            assert row["difference_to"] == f"decode {row['format']}, sdpa" and row["difference"] < 1e-4
        elif row["name"] in ("sdpa fp32 repeated", FOLDED):
            assert row["difference"] < 1e-5
        elif row["name"] == "decode int8-channel, sdpa":
            assert 0 < row["difference"] < 0.1
    assert not any("differs" in flag for flag in attention_report["flags"])


def test_attention_ratios_come_from_the_rounds(attention_report: dict[str, Any]) -> None:
    rows, one = attention_report["rows"], {"tokens": 420, "threads": 1}
    ours, base = named(rows, "int4-head", **one), named(rows, BASELINE, **one)
    decoded = named(rows, "decode int4-head, sdpa", **one)
    expected = ratios(base["rounds_ms"], ours["rounds_ms"])
    assert ours["faster_than_baseline"]["median"] == pytest.approx(expected["median"])
    folded = ratios(named(rows, FOLDED, **one)["rounds_ms"], ours["rounds_ms"])
    assert ours["faster_than_folded"]["median"] == pytest.approx(folded["median"])
    expected = ratios(decoded["rounds_ms"], ours["rounds_ms"])
    assert ours["faster_than_decode"]["median"] == pytest.approx(expected["median"])
    assert base["faster_than_baseline"]["median"] == 1 and base["faster_than_decode"] is None
    if cores() >= 2:
        wide = named(rows, "int4-head", tokens=420, threads=2)
        expected = ratios(ours["rounds_ms"], wide["rounds_ms"])
        assert ours["faster_with_more_threads"]["median"] == pytest.approx(expected["median"])
        assert wide["faster_with_more_threads"] is None


def test_attention_bytes_are_those_of_the_tensors(attention_report: dict[str, Any]) -> None:
    rows, one = attention_report["rows"], {"tokens": 420, "threads": 1}
    exact = 2 * 2 * 420 * 32 * 4
    assert named(rows, BASELINE, **one)["bytes"] == named(rows, FOLDED, **one)["bytes"] == exact
    assert named(rows, "sdpa bf16 grouped", **one)["bytes"] == exact // 2
    assert named(rows, "sdpa fp32 repeated", **one)["bytes"] == exact + 2 * 2 * exact
    ours = named(rows, "int4-head", **one)["bytes"]
    assert 2 * 4 * 32 * 2 * 68 < ours < exact / 2  # sinks and the recent window stay exact
    assert named(rows, "decode int4-head, sdpa", **one)["bytes"] == ours + 4 * exact


# decode


@pytest.fixture(scope="module")
def decode_report() -> dict[str, Any]:
    before, machine.PROBE_BYTES = machine.PROBE_BYTES, 1 << 20
    try:
        small = {"contexts": (40, 200), "rounds": 2, "prefill": 150, "prefill_rounds": 2}
        return bench_decode(DecodeSettings(model="random-llama", formats=("int4-head", "fp16"), **small))
    finally:
        machine.PROBE_BYTES = before


def test_decode_times_every_cache_at_every_context(decode_report: dict[str, Any]) -> None:
    check_machine(decode_report)
    rows = [row for row in decode_report["rows"] if row["status"] == "ok"]
    for context in (40, 200):
        assert {"dynamic", "int4-head", "fp16"} <= {row["name"] for row in rows if row["context"] == context}
    for row in rows:
        check_limits(row)
        base = named(rows, "dynamic", context=row["context"])
        expected = ratios(base["rounds_ms"], row["rounds_ms"])
        assert row["faster_than_dynamic"]["median"] == pytest.approx(expected["median"])
        if row["update"]:
            assert 0 < row["update"]["share"] < 1 and row["update"]["steps"] == update_steps(
                parse_spec(row["name"]) if row["name"] != "dynamic" else row["name"]
            )
    later = named(rows, "int4-head", context=200)
    grown = later["ms"]["median"] - named(rows, "int4-head", context=40)["ms"]["median"]
    assert later["growth_ms"] == pytest.approx(grown)


def test_prefill_ratios_come_from_the_rounds(decode_report: dict[str, Any]) -> None:
    rows = [row for row in decode_report["prefill"] if row["status"] == "ok"]
    base = named(rows, "dynamic")
    for row in rows:
        check_limits(row)
        assert len(row["rounds_ms"]) == 2 and row["tokens"] == 150
        expected = ratios(row["rounds_ms"], base["rounds_ms"])["median"]
        assert row["time_to_dynamic"]["median"] == pytest.approx(expected)


def test_growth_is_relative_to_the_baselines() -> None:
    def row(name: str, context: int, ms: float) -> dict[str, Any]:
        return {"name": name, "context": context, "status": "ok", "ms": {"median": ms}}

    rows = [row("dynamic", 1, 10), row("a", 1, 8), row("dynamic", 9, 30), row("a", 9, 13)]
    rows.append({"name": "b", "context": 9, "status": "failed"})
    add_growth(rows)
    assert (rows[3]["growth_ms"], rows[3]["growth_to_dynamic"]) == (5, 0.25)
    assert rows[1]["growth_ms"] is None and rows[2]["growth_to_dynamic"] == 1


def test_update_is_timed_over_two_flush_chunks() -> None:
    assert update_steps(parse_spec("int8-channel")) == 2 * 32
    assert update_steps(parse_spec("kivi-2")) == 2 * 128
    assert update_steps(parse_spec("fp16")) == update_steps("dynamic") == LEAST_STEPS


def test_updates_are_clocked_and_let_go() -> None:
    class Cache:
        def update(self, x: int) -> int:
            return x + 1

    cache = Cache()
    with clocked_updates(cache) as spent:
        assert [cache.update(1), cache.update(2)] == [2, 3]
    assert len(spent) == 2 and all(s >= 0 for s in spent) and "update" not in vars(cache)


def test_the_work_of_a_model_is_its_matrices_and_its_attention() -> None:
    model = random_model("random-llama")
    work = ModelWork.of(model)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    head = model.lm_head.weight.numel()
    tied = model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert work.head == head and work.body == matrices - head * (1 if tied else 2)
    assert work.attention(10) == 2 * 4 * (32 + 32) * 10
    assert work.elements(10) == 2 * 2 * (32 + 32) * 10
    assert work.step(10) == work.body + head + work.attention(10)


def test_stock_caches_run_or_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import DynamicCache

    found = {"python": "3", "torch": "2", "transformers": "5", "optimum-quanto": "0.2", "hqq": None}
    monkeypatch.setattr(versions, "versions", lambda peer: found)
    monkeypatch.setattr(worker, "new_cache", lambda recipe, config: DynamicCache(config=config))
    settings = DecodeSettings(
        model="random-llama", formats=("int4-head",), contexts=(40,), rounds=2, prefill=0
    )
    report = bench_decode(settings)
    row = named(report["rows"], "quanto-int4")
    assert row["status"] == "ok" and row["update"] is None and row["engine"] == "sdpa"
    assert "hqq-int4 left out: hqq is not installed" in report["flags"]


@pytest.mark.long("a whole benchmark of decoding")
def test_a_cache_that_fails_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(recipe: dict[str, Any], config: Any) -> Any:
        raise RuntimeError("not today")

    monkeypatch.setattr(decode, "STOCK", ("transformers-fp8",))
    monkeypatch.setattr(worker, "new_cache", broken)
    settings = DecodeSettings(
        model="random-llama", formats=("int4-head",), contexts=(40, 60), rounds=2, prefill=50
    )
    said: list[str] = []
    report = bench_decode(settings, lambda what, done=False: said.append(what) if done else None)
    row = named(report["rows"], "transformers-fp8", context=60)
    assert row["status"] == "failed" and row["reason"] == "RuntimeError: not today"
    assert "transformers-fp8 failed in prefill: RuntimeError: not today" in report["flags"]
    assert "not today" in table.markdown(report)
    assert [line.partition(", ms: dynamic ")[0] for line in said] == [
        "40 cached tokens",
        "60 cached tokens",
        "prefill of 50 tokens",
    ]
    assert not any("quanto" in line for line in said)


# encode


def test_encode_times_both_encoders_in_every_case() -> None:
    small = {"heads": 2, "head_dim": 32, "tokens": 200, "rounds": 3}
    report = bench_encode(EncodeSettings(formats=("int8-channel", "fp16", "kivi-2"), **small))
    check_machine(report)
    cases = {(row["format"], row["tensor"], row["case"], row["tokens"]) for row in report["rows"]}
    assert {("int8-channel", "key", "prefill", 192), ("int8-channel", "value", "flush chunk", 32)} < cases
    assert {("fp16", "key", "raw token", 1), ("kivi-2", "key", "flush chunk", 128)} < cases
    for row in report["rows"]:
        check_limits(row)
        if row["encoder"] == "native":
            where = {key: row[key] for key in ("format", "tensor", "case")} | {"encoder": "torch"}
            (other,) = (r for r in report["rows"] if all(r[key] == value for key, value in where.items()))
            expected = ratios(other["rounds_ms"], row["rounds_ms"])["median"]
            assert row["faster_than_torch"]["median"] == pytest.approx(expected)
    encoders = {row["encoder"] for row in report["rows"]}
    assert encoders == ({"native", "torch"} if native.isa() else {"torch"})


# the command


TINY = ["--heads", "2", "--head-dim", "32", "--rounds", "2", "--formats", "int8-head"]
TINY_ATTENTION = ["attention", *TINY, "--query-heads", "2", "--tokens", "100"]


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "attention.json"
    result = quantkv_command(*TINY_ATTENTION, "--json", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["benchmark"] == "attention" and report["settings"]["tokens"] == [100]
    for row in report["rows"]:
        assert row["name"] in result.output
    assert "× baseline" in result.output and "GB/s" in result.output and str(path) in result.output


def test_a_narrow_terminal_cuts_nothing(
    attention_report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    table.print_report(attention_report, Console(width=60))
    shown = capsys.readouterr().out
    assert "…" not in shown and "× decode, sdpa" in shown
    assert all(row["name"] in shown for row in attention_report["rows"])


def test_json_on_stdout_is_nothing_but_json() -> None:
    result = quantkv_command("encode", *TINY, "--tokens", "64", "--json", "-")
    assert json.loads(result.stdout)["benchmark"] == "encode"


def test_markdown_has_the_same_cells(attention_report: dict[str, Any]) -> None:
    lines = table.markdown(attention_report).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    shown = [row for row in attention_report["rows"] if row["threads"] == 1]
    assert len(rows) == 2 + len(shown)
    assert all(f"| {row['name']} |" in line for row, line in zip(shown, rows[2:]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--formats", "int4-haed"], "did you mean"),
        (["attention", "--formats", ","], "names no format"),
        (["attention", "--tokens", "many"], "--tokens takes whole numbers joined by commas, not 'many'"),
        (["attention", "--tokens", "0"], "--tokens must be at least 1, not 0"),
        (["attention", "--query-heads", "9"], "--query-heads 9 is not a multiple of --heads 8"),
        (["attention", "--rounds", "0"], "--rounds must be at least 1"),
        (["attention", "--isa", "v9"], "v9" if native.isa() else "no native engine"),
        (["attention", "--json", "/dev/null/x.json"], "cannot write"),
        (["encode", "--threads", "0"], "--threads must be at least 1"),
        (["attention", "--threads", "100000"], "--threads must be at most"),
        (["encode", "--threads", "100000"], "--threads must be at most"),
        (["decode", "random-llama", "--threads", "100000"], "--threads must be at most"),
        (["decode", "random-lama"], "random-llama"),
        (["decode", "random-llama", "--fill", "water"], "--fill must be one of prefill, synthetic"),
        (["decode", "random-llama", "--contexts", ","], "--contexts must be at least 1"),
        (["decode", "random-gpt2", "--contexts", "9000", "--fill", "prefill"], "exceed the model's limit"),
        (["decode", "random-gpt2", "--contexts", "9000", "--formats", "fp16"], "cannot run 9000 tokens"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], message: str) -> None:
    assert message in one_line(quantkv_command(*arguments))


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from quantkv.commands.cli import app; "
        "result = CliRunner().invoke(app, ['bench', 'decode', '--help']); assert result.exit_code == 0; "
        "print([name for name in ('torch', 'transformers', 'numpy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
