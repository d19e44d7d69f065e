"""A peer in another interpreter: one process per arm that loads the model, asked window by window.

The process runs `worker.py` as a script. Its standard input is its lifeline: when this process ends, or drops
the arm, it reads the end of its input and stops. `multiprocessing` would have the other interpreter import
this package.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quantkv.peers.peer import Peer
from quantkv.quiet import quiet

SCRIPT = Path(__file__).with_name("worker.py")
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
Numbers = dict[str, Any]


class RemoteError(RuntimeError):
    """What went wrong in the other interpreter, in its own last words."""


def environment() -> dict[str, str]:
    """Ours, without what would make another interpreter import our packages."""
    return {name: value for name, value in os.environ.items() if name not in OURS}


class Remote:
    """A model in the peer's interpreter, ready for requests; `close` ends it."""

    def __init__(self, peer: Peer, model: Any, attn: str) -> None:
        assert peer.python is not None, "a peer of this interpreter needs no process"
        self._folder = tempfile.TemporaryDirectory(prefix="quantkv-peer-")
        self._path, self._asked = Path(self._folder.name), 0
        self._log = self._path / "log.txt"
        job = {
            **_whereabouts(model, self._path / "model"),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "attn": attn,
            "threads": torch.get_num_threads(),
            "recipe": peer.recipe,
        }
        self._process = _start(peer.python, job, self._log)
        self._end = weakref.finalize(self, _stop, self._process, self._folder)
        self._read()

    def ask(self, what: str, ids: Tensor, calls: list[int], first: int) -> tuple[dict[str, Tensor], Numbers]:
        """Tensors and numbers of one request of `worker.answer`."""
        self._asked += 1
        given, made = (self._path / f"{name}-{self._asked}.safetensors" for name in ("ids", "out"))
        save_file({"ids": ids.contiguous()}, given)
        request = {"what": what, "calls": calls, "first": first, "ids": str(given), "out": str(made)}
        self._write(request)
        numbers = self._read()
        tensors = load_file(made)
        made.unlink()
        return tensors, numbers

    def close(self) -> None:
        self._end()

    def _write(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise RemoteError(self._last_words()) from None

    def _read(self) -> Numbers:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RemoteError(self._last_words())
        answer = dict(json.loads(line))
        if "error" in answer:
            raise RemoteError(answer["error"])
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the other interpreter ended with exit code {code}"


def _start(python: str, job: dict[str, Any], log: Path) -> subprocess.Popen[str]:
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [python, str(SCRIPT), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment(),
        )


def _stop(process: subprocess.Popen[str], folder: tempfile.TemporaryDirectory[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    folder.cleanup()


def _whereabouts(model: Any, folder: Path) -> dict[str, str | None]:
    """Where the other interpreter finds the same weights: a folder, a hub id, or a copy written for it."""
    name, revision = model.config._name_or_path, getattr(model.config, "_commit_hash", None)
    if name and Path(name).is_dir():
        return {"model": str(Path(name).resolve()), "revision": None}
    if revision is not None:
        return {"model": name, "revision": revision}
    with quiet():
        model.save_pretrained(folder)
    return {"model": str(folder), "revision": None}
