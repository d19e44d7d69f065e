"""Codecs and policies from outside: by a call, and from the entry points of installed packages."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fake_measure import FakeMeasure
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from quantkv import QuantKVError, parse_spec, plugins
from quantkv.codecs import CodecFamily, register_codec
from quantkv.codecs.maps.had import Had
from quantkv.codecs.raw import Raw
from quantkv.codecs.registry import FAMILIES, MAPS
from quantkv.commands.cli import app
from quantkv.plugins import ImportedFile, Origin, import_file
from quantkv.policy import POLICIES, Length, Window, register_policy
from quantkv.rows.files import read_rows
from quantkv.sweep.answers import Tried
from quantkv.sweep.config import load_config, validate
from quantkv.sweep.engines import rules
from quantkv.sweep.grid import expand
from quantkv.sweep.local import LocalSession
from quantkv.sweep.run import apart
from quantkv.sweep.runner import work
from quantkv.sweep.summary import Summary
from quantkv.testing import check_codec

FAMILY = CodecFamily("half", None, lambda sharing, options: Raw(torch.float16), sharings=(), raw=True)
ANOTHER = CodecFamily("half", None, lambda sharing, options: Raw(torch.float16), sharings=(), raw=True)


class Quarter(Window):
    """At most a quarter of the tokens is exact: short prompts are packed earlier."""

    def boundary(self, n: Length) -> Length:
        quarter = n // 4
        recent = quarter.clamp_max(self.recent) if isinstance(quarter, Tensor) else min(quarter, self.recent)
        past = n - self.sinks - recent
        past = past.clamp_min(0) if isinstance(past, Tensor) else max(0, past)
        return self.sinks + past // self.flush * self.flush


class Turned(Had):
    """A map from outside."""


class Package:
    """Stands for what is installed of a package."""

    def __init__(self, name: str, version: str = "1.0") -> None:
        self.name, self.version = name, version

    def offer(self, name: str, target: str) -> EntryPoint:
        return EntryPoint(name, f"{__name__}:{target}", "group")._for(self)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the start of a process."""
    for known in (FAMILIES, MAPS, POLICIES):
        monkeypatch.setattr(known, "known", dict(known.known))
        monkeypatch.setattr(known, "_asked", False)
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setenv(plugins.VARIABLE, "")  # and goes afterwards, for the processes of other tests


def installed(monkeypatch: pytest.MonkeyPatch, group: str, *points: EntryPoint) -> None:
    """Pretend that packages with these entry points are installed."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == asked else [])
    asked = group


def registers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that calls `register_codec` when an entry point loads it."""
    load = EntryPoint.load

    def loads(self: EntryPoint) -> Any:
        register_codec(FAMILY)
        return load(self)

    monkeypatch.setattr(EntryPoint, "load", loads)


def test_policy_registers_by_a_call_and_keeps_the_contract() -> None:
    register_policy("quarter", Quarter)
    spec = parse_spec("int4-head+r24+f8+s2+k8+p.quarter")
    assert str(spec) == "int4-head+r24+f8+s2+k8+p.quarter"
    assert spec.key_window.boundary(42) == 2 + 24  # 42 − 2 − 10 = 30: three chunks of 8
    assert parse_spec("int4-head+r24+f8+s2").key_window.boundary(42) == 2 + 16  # 42 − 2 − 24 = 16: two chunks
    check_codec(spec)


def test_codecs_and_policies_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "quantkv.policies", Package("late").offer("quarter", "Quarter"))
    assert isinstance(parse_spec("int4-head+p.quarter").key_window, Quarter)
    installed(monkeypatch, "quantkv.codecs", Package("halves", "2.1").offer("any", "FAMILY"))
    monkeypatch.setattr(FAMILIES, "_asked", False)
    spec = parse_spec("half+p.quarter")
    assert spec.bits_packed(head_dim=64, num_key_value_heads=2) == 16
    assert rules(spec, "quality") == {
        "half": Origin("package halves", "2.1"),
        "quarter": Origin("package late", "1.0"),
    }
    assert rules(parse_spec("int4-head"), "quality") == {}
    assert list(rules(parse_spec("int4-head+l0.half"), "quality")) == ["half"]


def test_a_plugin_may_register_itself_and_be_an_entry_point_too(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "quantkv.codecs", Package("halves").offer("half", "FAMILY"))
    registers_itself(monkeypatch)
    assert parse_spec("half").key.codec == "half"
    register_codec(FAMILY)  # as a script does that imports it, too
    assert FAMILIES.origin("half") == Origin("package halves", "1.0")


def test_imported_before_it_is_asked_for_a_plugin_is_known_as_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register_codec(FAMILY)
    installed(monkeypatch, "quantkv.codecs", Package("halves").offer("half", "FAMILY"))
    assert FAMILIES.origin("half") == Origin("package halves", "1.0")


def test_two_packages_of_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Package("halves").offer("half", "FAMILY"), Package("thirds").offer("half", "ANOTHER")]
    installed(monkeypatch, "quantkv.codecs", *points)
    for _ in range(2):  # and not only the first time
        with pytest.raises(QuantKVError, match=r"'half' is registered already, by package halves; .*thirds"):
            parse_spec("int4-head")


def test_a_plugin_that_cannot_be_loaded_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Package("broken").offer("gone", "NOTHING"), Package("halves").offer("half", "FAMILY")]
    installed(monkeypatch, "quantkv.codecs", *points)
    with pytest.warns(UserWarning, match="codec 'gone' of package broken is left out .*NOTHING"):
        assert parse_spec("half").key.codec == "half"


def test_an_entry_point_that_holds_something_else_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "quantkv.codecs", Package("odd").offer("window", "Quarter"))
    with pytest.warns(
        UserWarning, match=r"odd is left out .*'window' of quantkv\.codecs must be a CodecFamily"
    ):
        assert parse_spec("int4-head").key.codec == "int4"


def test_names_are_taken_once_and_unknown_ones_name_the_legal() -> None:
    with pytest.raises(QuantKVError, match=r"'window' is registered already, by quantkv\.policy"):
        register_policy("window", Quarter)
    with pytest.raises(QuantKVError, match=rf"'int4' is .*quantkv\.codecs\.registry; another .*{__name__}"):
        register_codec(CodecFamily("int4", 4, FAMILY.build))
    with pytest.raises(QuantKVError, match=r"unknown policy 'quater'; legal: window; .*--import FILE"):
        parse_spec("int4-head+p.quater")


@pytest.mark.parametrize("name", ["nf4-head", "int7-head", "int4-head+l0.nf4-head"])
def test_an_unknown_format_says_how_to_bring_one(name: str) -> None:
    with pytest.raises(QuantKVError, match="unknown format"):
        parse_spec(name)
    with pytest.raises(QuantKVError, match=r"unknown format .*--import FILE, or import: FILE in a sweep"):
        parse_spec("nf4-head")


# files


CODEC = """
import torch
from quantkv import parse_spec
from quantkv.codecs import CodecFamily, register_codec
from quantkv.codecs.raw import Raw

register_codec(CodecFamily("half", None, lambda sharing, options: Raw(torch.float16), sharings=(), raw=True))
assert str(parse_spec("half")) == "half"
"""


def codec_file(folder: Path, content: str = CODEC, name: str = "mine.py") -> Path:
    (folder / name).write_text(content)
    return folder / name


def start_again(monkeypatch: pytest.MonkeyPatch, *, keep: bool) -> None:
    """Forget files and what they brought, as in another process; `keep` what that inherits from this one."""
    for known in (FAMILIES, POLICIES):
        monkeypatch.setattr(known, "known", {n: v for n, v in known.known.items() if not v[1].version})
        monkeypatch.setattr(known, "_asked", False)
    monkeypatch.setattr(plugins, "_files", {})
    if not keep:
        monkeypatch.delenv(plugins.VARIABLE)


def test_a_file_is_imported_once_and_by_the_processes_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = codec_file(tmp_path)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert (
        import_file(file) == import_file(tmp_path / "x" / ".." / "mine.py") == ImportedFile(str(file), sha256)
    )
    assert rules(parse_spec("half"), "quality") == {"half": Origin("mine.py", sha256)}
    start_again(monkeypatch, keep=True)
    assert rules(parse_spec("half"), "quality") == {"half": Origin("mine.py", sha256)}
    start_again(monkeypatch, keep=False)
    with pytest.raises(QuantKVError, match="unknown format 'half'"):
        parse_spec("half")


def test_a_file_that_changes_meanwhile_stops_the_processes_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_file(codec_file(tmp_path))
    codec_file(tmp_path, CODEC + "# another rule")
    start_again(monkeypatch, keep=True)
    with pytest.raises(QuantKVError, match=r"mine\.py was changed while it was in use"):
        parse_spec("half")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            CODEC.replace('"half"', '"int4"'),
            "'int4' is registered already, by quantkv.codecs.registry; .*mine.py",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(QuantKVError, match=f"cannot import {tmp_path}/mine.py: .*{message}"):
        import_file(codec_file(tmp_path, content))
    assert plugins.imported() == ()
    with pytest.raises(QuantKVError, match=r"none\.py: No such file"):
        import_file(tmp_path / "none.py")


RAW = {"schema": 1, "models": "random-llama", "formats": ["half", "int4-head"], "contexts": 64, "memory": {}}


def sweep_file(folder: Path, **more: Any) -> Path:
    (folder / "sweep.yaml").write_text(yaml.safe_dump(RAW | {"run": {"out": str(folder / "out")}} | more))
    return folder / "sweep.yaml"


def test_a_sweep_brings_its_files_to_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the sweep's file, from another working directory; the sweep is what Ray and Slurm hand over."""
    codec_file(tmp_path)
    sweep = load_config(sweep_file(tmp_path, **{"import": "mine.py"}))
    handed = pickle.dumps(apart(sweep))

    def there() -> Summary:
        start_again(monkeypatch, keep=False)
        sweep = pickle.loads(handed)
        return work(sweep, Tried(tmp_path), FakeMeasure(), Console(quiet=True))

    assert there().counts["ok"] == 3
    codec_file(tmp_path, CODEC + "# another rule")
    with pytest.raises(QuantKVError, match=r"mine\.py was changed"):
        there()


def test_the_rule_in_a_file_is_in_the_keys_and_rows_of_its_formats_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed rule behind the same name is another number; formats of quantkv keep their keys."""
    keys: list[dict[str, str]] = []
    for content in (CODEC, CODEC + "# another rule"):
        sweep = load_config(sweep_file(tmp_path, **{"import": str(codec_file(tmp_path, content))}))
        session = LocalSession(sweep.models[0], sweep)
        cells = {cell.label: cell for cell in expand(sweep)}
        keys.append({label: cell.key(session.facts(cell)) for label, cell in cells.items()})
        unmeasured = {"status": "failed", "reason": "not run"}
        rows = {label: session.row(cell, unmeasured, "") for label, cell in cells.items()}
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        assert rows["half"]["provenance"]["rules"] == {"half": f"mine.py {sha256}"}
        assert "rules" not in rows["int4-head"]["provenance"]
        start_again(monkeypatch, keep=False)
    assert keys[0]["half"] != keys[1]["half"]
    assert keys[0]["int4-head"] == keys[1]["int4-head"] and keys[0]["dynamic"] == keys[1]["dynamic"]


def test_a_sweep_without_files_has_the_keys_it_had() -> None:
    sweep = validate(RAW | {"formats": "int4-head"})
    session = LocalSession(sweep.models[0], sweep)
    assert all(not {"rules", "methods"} & set(session.facts(cell)) for cell in expand(sweep))


def test_a_version_is_in_the_keys_of_its_formats_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = ["int4-head", "k8v4", "int8-head", "int8-head@had", "int8-head+l0.int4-head@ctr"]
    sweep = validate(RAW | {"formats": formats})
    session = LocalSession(sweep.models[0], sweep)
    cells = {cell.label: cell for cell in expand(sweep)}
    before = {label: cell.key(session.facts(cell)) for label, cell in cells.items()}
    changed = replace(FAMILIES.get("int4"), version=3)
    monkeypatch.setitem(FAMILIES.known, "int4", (changed, FAMILIES.origin("int4")))
    monkeypatch.setattr(Had, "version", 2)
    facts = {label: session.facts(cell).get("methods") for label, cell in cells.items()}
    assert facts == {
        "int4-head": {"int4": 3}, "k8v4": {"int4": 3}, "int8-head": None, "int8-head@had": {"had": 2},
        "int8-head+l0.int4-head@ctr": {"int4": 3}, "dynamic": None,
    }  # fmt: skip
    same = {label for label, cell in cells.items() if cell.key(session.facts(cell)) == before[label]}
    assert same == {"int8-head", "dynamic"}


def test_maps_come_from_files_and_packages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "quantkv.maps", Package("turns", "1.2").offer("turned", "Turned"))
    assert rules(parse_spec("int4-head@turned"), "quality") == {"turned": Origin("package turns", "1.2")}
    assert rules(parse_spec("int4-head@had"), "quality") == {}
    installed(monkeypatch, "quantkv.maps", Package("odd").offer("window", "Quarter"))
    monkeypatch.setattr(MAPS, "_asked", False)
    with pytest.warns(
        UserWarning, match=r"odd is left out .*'window' of quantkv\.maps must be a subclass of Map"
    ):
        assert parse_spec("int4-head@had").key.maps == ("had",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "import: 3 is no Python file"),
        ([["a"]], "is no Python file"),
        ("none.py", "import: cannot import .*none.py"),
    ],
)
def test_wrong_imports_of_a_sweep_are_said(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        load_config(sweep_file(tmp_path, **{"import": given}))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--import", "{file}", "sweep", "{sweep}", "--dry-run"],
        ["sweep", "{sweep}", "--import", "{file}", "--dry-run"],
        ["--import", "{file}", "describe", "random-llama", "-f", "half"],
    ],
)
def test_commands_take_files(tmp_path: Path, arguments: list[str]) -> None:
    places = {"file": str(codec_file(tmp_path)), "sweep": str(sweep_file(tmp_path))}
    result = CliRunner().invoke(app, [word.format(**places) for word in arguments])
    assert result.exit_code == 0, result.output
    assert "half" in result.output


@pytest.mark.slow
def test_a_codec_in_a_file_is_measured_in_all_processes_of_a_sweep(tmp_path: Path) -> None:
    """The worker of the sweep and that of each memory cell; then the report of a process without it."""
    codec_file(tmp_path)
    quality = {"protocol": {"windows": 1, "score": 16}}
    more = {"import": "mine.py", "quality": quality, "contexts": 256, "formats": "half"}
    for command in (["sweep", str(sweep_file(tmp_path, **more))], ["report", str(tmp_path / "out")]):
        done = subprocess.run(
            [sys.executable, "-m", "quantkv.commands.cli", *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path / "out")
    assert {(row["kind"], row["requested"]["format"], row["status"]) for row in rows} == {
        ("memory", "dynamic", "ok"),
        ("memory", "half", "ok"),
        ("quality", "half", "ok"),
    }


def test_published_presets_take_a_policy_only_when_it_is_said() -> None:
    register_policy("quarter", Quarter)
    assert isinstance(parse_spec("kivi-2+p.quarter").key_window, Quarter)
    assert parse_spec("kivi-2").policy == "window"
