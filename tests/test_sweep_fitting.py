"""Formats that a model can hold only in part, and settings that do nothing: the row says both."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support import architectures

from quantkv.errors import QuantKVError
from quantkv.models.synthetic import byte_tokenizer
from quantkv.peers import parse_peer
from quantkv.rows.files import read_rows
from quantkv.rows.settings import Policy
from quantkv.spec import parse_spec
from quantkv.sweep.config import validate
from quantkv.sweep.fitting import fit, without_effect
from quantkv.sweep.local import LocalMeasure
from quantkv.sweep.run import run_sweep

GROUPS = "int4-token@g32+r8+f8+s2+sliding"
"""Groups of 32 channels, which the first of the two layers, 16 channels wide, cannot hold."""
WHY = "layers 0 stay exact: a group of 32 channels does not divide head_dim 16; legal groups: 8, 16"


@pytest.fixture
def uneven() -> Any:
    """A model of a layer with a sliding window, 16 channels wide, and one of full attention, 32 wide."""
    return architectures.tiny_model("gemma4_text")


def test_layers_that_cannot_hold_a_format_stay_exact(uneven: Any) -> None:
    fitted = fit(uneven.config, parse_spec(GROUPS))
    assert fitted.spec == parse_spec(GROUPS).with_layers({0: "exact"})
    assert (fitted.packed, fitted.notes) == (1, [WHY])


def test_a_format_that_fits_is_as_it_was(uneven: Any) -> None:
    spec = parse_spec("int4-head")
    fitted = fit(uneven.config, spec)
    assert (fitted.spec, fitted.reasons, fitted.packed) == (spec, {}, 1)


def test_a_format_that_no_layer_holds_is_not_called_exact(uneven: Any) -> None:
    fitted = fit(uneven.config, parse_spec("int4-token@g24"))
    assert (str(fitted.spec), fitted.reasons) == (str(parse_spec("int4-token@g24")), {})


def test_layers_that_are_not_packed_anyhow_are_not_named(uneven: Any) -> None:
    fitted = fit(uneven.config, parse_spec(GROUPS.removesuffix("+sliding")))
    assert (fitted.notes, fitted.packed) == ([], 1)


def sweep_of(model: Any, folder: Path, on_unsupported: str) -> list[dict[str, Any]]:
    model.save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    raw = {"schema": 1, "models": [str(folder / "model")], "formats": [GROUPS], "contexts": [64]}
    raw |= {"quality": {"text": str(folder / "text.txt"), "protocol": {"score": 16, "windows": 2}}}
    raw |= {"run": {"out": str(folder / on_unsupported), "on_unsupported": on_unsupported}}
    run_sweep(validate(raw), measure=LocalMeasure(), console=Console(file=io.StringIO()))
    return read_rows(folder / on_unsupported)


def test_the_row_tells_what_ran(uneven: Any, tmp_path: Path) -> None:
    (row,) = sweep_of(uneven, tmp_path, "exact")
    assert row["status"] == "ok" and row["quality"]["kl_mean"] > 0
    ran = row["effective"]
    assert (row["requested"]["spec"], ran["spec"]) == (
        str(parse_spec(GROUPS)),
        str(parse_spec(GROUPS).with_layers({0: "exact"})),
    )
    assert (ran["layers_quantized"], ran["layers_total"]) == (1, 2) and WHY in ran["notes"]


def test_otherwise_the_cell_is_skipped_or_the_sweep_refused(uneven: Any, tmp_path: Path) -> None:
    (row,) = sweep_of(uneven, tmp_path, "skip")
    assert row["status"] == "skipped" and "does not divide head_dim 16" in row["reason"]
    with pytest.raises(QuantKVError, match="does not divide head_dim 16"):
        sweep_of(uneven, tmp_path, "error")


@pytest.mark.parametrize(
    ("policy", "format", "settings"),
    [
        ({"recent": 32}, "int4-head+r32", []),
        ({"recent": 32}, "kivi-2", ["recent"]),
        ({"recent": [0, 32]}, "kivi-2", []),
        ({"recent": [16, 32], "flush": 7, "sinks": 4}, "kivi-2", ["sinks", "recent", "flush"]),
        ({"sinks": 4, "recent": 64}, "fp16", ["sinks", "recent"]),
        ({}, "kivi-2", []),
    ],
)
def test_settings_that_a_format_does_not_take(policy: Any, format: str, settings: list[str]) -> None:
    """KIVI-2 keeps no sinks, 0 recent keys packed 128 at a time, and 128 recent values packed one by one."""
    notes = without_effect(Policy(**policy), parse_spec(format))
    assert [note.split()[0] for note in notes] == [f"policy.{name}" for name in settings]


def test_a_note_says_what_the_format_keeps() -> None:
    (note,) = without_effect(Policy(recent=32), parse_spec("kivi-2"))
    assert note == "policy.recent has no effect: the format keeps its own, 0 and 128"
    (note,) = without_effect(Policy(recent=32), parse_peer("quanto-int4"))
    assert note == "policy.recent has no effect: a peer keeps its own"
    assert without_effect(Policy(recent=32), None) == []
