"""Relative paths in a sweep file: its own folder first, then the working directory."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from quantkv.data import load_text
from quantkv.errors import QuantKVError
from quantkv.rows.claims import prepare_folder
from quantkv.sweep.config import Sweep, load_config
from quantkv.sweep.fitting import model_config
from quantkv.sweep.grid import expand
from quantkv.sweep.run import apart

YAML = """
schema: 1
models: [{id: %s, dtype: bf16}]
formats: [int8-head, {peer: quanto-int4, python: bin/python}]
contexts: 16
quality: {text: %s, protocol: {score: 8, windows: 2}}
generation: {text: %s, tokens: 4, prompts: 1}
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of the sweep's file and the working directory; both have an interpreter."""
    for name in ("study", "here"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "study", tmp_path / "here"


def written(folder: Path, model: str = "random-llama", text: str = "prose.txt") -> Sweep:
    (folder / "sweep.yaml").write_text(YAML % (model, text, text))
    return load_config(folder / "sweep.yaml")


@pytest.mark.parametrize(("there", "found"), [((0,), 0), ((1,), 1), ((0, 1), 0)])
def test_a_text_is_looked_for_beside_the_file_and_then_where_we_are(
    folders: tuple[Path, Path], there: tuple[int, ...], found: int
) -> None:
    for number in there:
        (folders[number] / "prose.txt").write_text(f"words of {folders[number].name} " * 50)
    sweep = pickle.loads(pickle.dumps(apart(written(folders[0]))))  # as workers get it
    for section in (sweep.quality, sweep.generation):
        assert load_text(section.text.argument).text.startswith(f"words of {folders[found].name}")
    assert Path(sweep.quality.text.argument).is_absolute()


def test_what_is_asked_for_keeps_the_name_it_was_given(folders: tuple[Path, Path]) -> None:
    (folders[0] / "prose.txt").write_text("words")
    cell = expand(written(folders[0]))[0]
    assert cell.protocol["text"] == "prose.txt" and cell.requested()["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", ["python-docs", "wikitext-2"])
def test_a_built_in_name_is_no_path(folders: tuple[Path, Path], name: str) -> None:
    (folders[0] / name).write_text("words")
    assert written(folders[0], text=name).quality.text.argument == name


def test_a_bare_name_of_an_interpreter_is_that_of_the_path(folders: tuple[Path, Path]) -> None:
    name = Path(sys.executable).name
    (folders[0] / name).mkdir()
    (folders[0] / "sweep.yaml").write_text((YAML % ("m", "a", "a")).replace("bin/python", name))
    assert load_config(folders[0] / "sweep.yaml").formats[1].python == name


def test_a_model_and_an_interpreter_are_looked_for_in_the_same_way(folders: tuple[Path, Path]) -> None:
    from quantkv.models import random_model

    random_model("random-llama").config.save_pretrained(folders[0] / "models" / "mine")
    (folders[0] / "random-llama").mkdir()
    (entry,) = written(folders[0], model="models/mine").models
    assert entry.location == str(folders[0] / "models" / "mine") and entry.id == "models/mine"
    assert model_config(entry).model_type == "llama"
    assert written(folders[0]).models[0].location == "random-llama"
    assert written(folders[0]).formats[1].python == str(folders[0] / "bin" / "python")
    (folders[0] / "bin" / "python").unlink()
    assert written(folders[0]).formats[1].python == str(folders[1] / "bin" / "python")
    (folders[1] / "bin" / "python").unlink()
    with pytest.raises(QuantKVError, match="there is no interpreter 'bin/python'"):
        written(folders[0])


@pytest.mark.parametrize(
    ("given", "whole"),
    [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32"), ("fp64", "float64"), ("auto", "auto")],
)
def test_short_names_of_dtypes_are_those_of_load_model(tmp_path: Path, given: str, whole: str) -> None:
    (tmp_path / "s.yaml").write_text(
        f"schema: 1\nmodels: {{id: m, dtype: {given}}}\nformats: fp16\ncontexts: 16\nmemory: {{}}\n"
    )
    assert load_config(tmp_path / "s.yaml").models[0].dtype == whole


@pytest.mark.parametrize("name", ["x" * 5000, '"a\\0b"'], ids=["long", "null"])
def test_names_that_no_file_can_have_are_one_error(folders: tuple[Path, Path], name: str) -> None:
    sweep = written(folders[0], model=name, text=name)
    with pytest.raises(QuantKVError):
        load_text(sweep.quality.text.argument)
    with pytest.raises(QuantKVError):
        prepare_folder(folders[0] / sweep.models[0].id)
