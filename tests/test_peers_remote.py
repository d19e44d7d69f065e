"""Peers in another interpreter: this Python, started anew with nothing of our path, is the other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_kvpress
import psutil
import pytest
import torch

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments.windows import make_windows
from quantkv.measurements.quality.protocols import make_protocol
from quantkv.measurements.quality.run import quality_block
from quantkv.measurements.quality.scoring import Scorer
from quantkv.measurements.quality.token_by_token import TokenByTokenArm
from quantkv.measurements.running import new_cache
from quantkv.models import random_model
from quantkv.peers import parse_peer, remote
from quantkv.peers.versions import check_peer, versions
from quantkv.sweep.config import validate
from quantkv.sweep.run import run_sweep

CONTEXT, SCORE = 64, 16
PROTOCOL = {"score": SCORE, "windows": 2}
IDS = torch.randint(0, 256, (1000,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_kvpress.install(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def python(folder: Path) -> str:
    return fake_kvpress.interpreter(folder)


def arms_of(model: Any, arms: dict[str, Any]) -> dict[str, Any]:
    plan = make_windows(IDS, span=CONTEXT, score=SCORE, windows=2)
    return quality_block(model, plan.at(CONTEXT), arms, context=CONTEXT, protocol=PROTOCOL)


@pytest.mark.long("starts another interpreter")
def test_the_other_interpreter_gives_the_same_numbers(
    python: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pruned cache, decoded here and there: the same floats, scored by the same code."""
    monkeypatch.syspath_prepend(folder)
    model = random_model("random-llama", dtype=torch.float64)
    arms = {"here": parse_peer("kvpress-knorm-0.5"), "there": parse_peer("kvpress-knorm-0.5", python=python)}
    found = arms_of(model, arms)
    here, there = found["here"]["quality"], found["there"]["quality"]
    assert there["kl_mean"] == pytest.approx(here["kl_mean"], rel=1e-9) and here["kl_mean"] > 1e-4
    for bits in ("bits_cache", "bits_cache_16", "bits_cache_mean", "cache_bytes"):
        assert there[bits] == here[bits]
    notes = found["there"]["effective"]["notes"]
    assert any(note.startswith("ran in another interpreter; without a format") for note in notes)


def test_a_format_here_packs_what_a_press_left_there(
    python: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    model = random_model("random-llama", dtype=torch.float64)
    arms = {"here": parse_peer("kvpress-knorm-0.5")}
    arms["there"] = parse_peer("kvpress-knorm-0.5+exact", python=python)
    found = arms_of(model, arms)
    here, there = found["here"]["quality"], found["there"]["quality"]
    assert there["kl_mean"] == pytest.approx(here["kl_mean"], rel=1e-6) and here["kl_mean"] > 1e-4
    assert found["there"]["effective"]["engine"] != "kvpress"  # our cache decoded, theirs only prefilled


def test_its_errors_are_ours_and_cost_no_other_arm(python: str, tiny_llama: Any) -> None:
    arms = {"theirs": parse_peer("kvpress-snapkv-0.5", python=python), "ours": "int4-head+r8"}
    found = arms_of(tiny_llama, arms)
    assert found["theirs"]["status"] == "failed"
    assert found["theirs"]["reason"] == "RemoteError: ValueError: no snap today"
    assert found["ours"]["status"] == "ok"


def test_a_process_that_dies_leaves_its_last_line(tmp_path: Path, tiny_llama: Any) -> None:
    script = Path(fake_kvpress.interpreter(tmp_path))
    script.write_text("#!/bin/sh\necho first >&2\necho 'the last word' >&2\nexit 3\n")
    with pytest.raises(remote.RemoteError, match=r"^the last word$"):
        remote.Remote(parse_peer("transformers-fp8", python=str(script)), tiny_llama, "sdpa")


def test_a_process_without_a_word_is_named_by_its_exit_code(tmp_path: Path, tiny_llama: Any) -> None:
    script = Path(fake_kvpress.interpreter(tmp_path))
    script.write_text("#!/bin/sh\nexit 7\n")
    with pytest.raises(remote.RemoteError, match="exit code 7"):
        remote.Remote(parse_peer("transformers-fp8", python=str(script)), tiny_llama, "sdpa")


def test_another_model_there_is_an_error(
    python: str, tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights or settings that the other interpreter reads differently may not pass for a cache's damage."""
    other = random_model("random-llama", seed=5)

    def misled(model: Any, folder: Path) -> dict[str, Any]:
        other.save_pretrained(folder)
        return {"model": str(folder), "revision": None}

    monkeypatch.setattr(remote, "_whereabouts", misled)
    found = arms_of(tiny_llama, {"theirs": parse_peer("kvpress-knorm-0.5", python=python)})["theirs"]
    assert found["status"] == "failed" and "is another one: mean KL" in found["reason"]


def test_the_process_ends_with_its_arm(python: str, tiny_llama: Any) -> None:
    protocol = make_protocol(PROTOCOL)
    arm = TokenByTokenArm(tiny_llama, parse_peer("kvpress-knorm-0.5", python=python), protocol, CONTEXT)
    assert arm.remote is not None
    process = psutil.Process(arm.remote._process.pid)
    (window, _) = make_windows(IDS, span=CONTEXT, score=SCORE, windows=2).at(CONTEXT)
    arm.score(Scorer(tiny_llama, protocol, CONTEXT).prepare(window))
    arm.close()
    assert not process.is_running() and not arm.remote._path.exists()


def test_versions_are_those_of_the_other_interpreter(python: str) -> None:
    found = versions(parse_peer("kvpress-knorm-0.5", python=python))
    assert found["kvpress"] == "0.0.1" and found["torch"] == torch.__version__


def test_what_is_not_installed_there_is_said(tmp_path: Path, tiny_llama: Any) -> None:
    bare = parse_peer("kvpress-knorm-0.5", python=fake_kvpress.interpreter(tmp_path))
    if versions(bare)["kvpress"] is not None:
        pytest.skip("kvpress is installed")
    with pytest.raises(UnsupportedError, match="kvpress is not installed for"):
        check_peer(bare, tiny_llama.config)


def test_a_python_that_is_none_is_said(tmp_path: Path) -> None:
    script = Path(fake_kvpress.interpreter(tmp_path))
    script.write_text("#!/bin/sh\necho nonsense\n")
    with pytest.raises(QuantKVError, match="cannot be asked for its packages"):
        versions(parse_peer("transformers-fp8", python=str(script)))


def test_an_arm_elsewhere_takes_part_in_no_race(python: str, tiny_llama: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"another interpreter.*no speed and no memory"):
        new_cache(tiny_llama, parse_peer("transformers-fp8", python=python))


# the sweep


def settings(formats: list[Any], out: Path, **sections: Any) -> Any:
    base = {"schema": 1, "models": ["random-llama"], "formats": formats, "contexts": [CONTEXT]}
    return validate(base | {"run": {"out": str(out)}} | sections)


def test_a_sweep_file_names_peers(python: str, tmp_path: Path) -> None:
    sweep = settings(
        [
            "dynamic",
            "int4-head",
            "peer:quanto-int4",
            {"peer": "kvpress-knorm-0.5", "python": python},
            {"peer": "peer:kvpress-knorm-0.5+int4-head", "name": "knorm+int4", "python": python},
        ],
        tmp_path,
        speed={"formats": ["quanto-int4"]},
    )
    labels = ["dynamic", "int4-head", "quanto-int4", "kvpress-knorm-0.5", "knorm+int4"]
    assert [entry.label for entry in sweep.formats] == labels
    assert sweep.formats[0].with_policy() is None
    assert str(sweep.formats[3].with_policy()) == "peer:kvpress-knorm-0.5@other"
    assert str(sweep.formats[4].with_policy(recent=8)) == "peer:kvpress-knorm-0.5@other+int4-head+r8"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("peer:quanto-int5", "did you mean 'quanto-int4'"),
        ({"peer": "hqq-int4", "python": "/nowhere"}, "no interpreter"),
        ({"name": "int4-head", "python": "/bin/sh"}, "give peer"),
        ({"peer": "hqq-int4", "spec": "int4-head"}, "PRESS"),
        ({"peer": "hqq-int4", "pyton": "/bin/sh"}, "unknown setting"),
    ],
)
def test_a_wrong_entry_stops_the_sweep(entry: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(QuantKVError, match=complaint):
        settings([entry], tmp_path, memory={})


def test_one_sweep_measures_ours_and_theirs(python: str, tmp_path: Path) -> None:
    """Rows of one study: the same windows, protocol and table, and provenance of the other interpreter."""
    from quantkv.studies.study import studies

    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    sweep = settings(
        ["dynamic", "int4-head+r8", {"peer": "kvpress-knorm-0.5", "python": python}],
        tmp_path / "out",
        quality={"text": str(tmp_path / "text.txt"), "protocol": PROTOCOL},
    )
    summary = run_sweep(sweep)
    assert summary.counts == {"ok": 3, "failed": 0, "skipped": 0}
    rows = {row["requested"]["format"]: row for row in summary.rows()}
    theirs = rows["kvpress-knorm-0.5"]
    assert theirs["provenance"]["peer"]["kvpress"] == "0.0.1"
    assert theirs["requested"]["spec"] == "peer:kvpress-knorm-0.5@other"
    references = [[w["sum_nll_ref"] for w in row["quality"]["windows"]] for row in rows.values()]
    assert references[0] == references[1] == references[2]
    (study,) = studies(rows.values())
    assert {record["label"] for record in study.records()} >= {"int4-head+r8", "kvpress-knorm-0.5"}
    assert run_sweep(sweep).finished_before == 3
