"""Claims: an exclusive file per cell, so that several workers can share one results folder.

A claim is given up by its owner, or taken over when the owner's process is gone or its heartbeat has
stopped. Who takes one over holds a second file meanwhile, so that of several only one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkv.errors import QuantKVError
from quantkv.wording.escapes import visible

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


class Claims:
    """The claims this process holds in one folder; a context manager that gives them all up at the end."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / ".claims"
        self._held: set[Path] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Claims:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._beat, name="quantkv-claims", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for path in list(self._held):
            self._give_up(path)
        self._clear_up()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def take(self, key: str, title: str = "") -> bool:
        """True when the cell is now ours; its ``title`` is for those who watch."""
        path = self._path(key)
        if path in self._held:
            return True
        if self._create(path, title):
            return True
        return is_stale(path) and self._take_over(path, title)

    def is_free(self, key: str) -> bool:
        """Whether ``take`` may have it."""
        return is_stale(self._path(key))

    def release(self, key: str) -> None:
        path = self._path(key)
        if path in self._held:
            self._give_up(path)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _create(self, path: Path, title: str) -> bool:
        """Held first and made after, so that an interruption in between leaves no claim behind."""
        self._held.add(path)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            self._held.discard(path)
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(_myself() | {"cell": title}, file)
        return True

    def _take_over(self, path: Path, title: str) -> bool:
        lock = path.with_suffix(".takeover")
        if not self._create(lock, title):
            if is_stale(lock):
                lock.unlink(missing_ok=True)
            return False
        try:
            if not is_stale(path):  # asked again under the lock: another may have taken it over meanwhile
                return False
            path.unlink(missing_ok=True)
            return self._create(path, title)
        finally:
            self._give_up(lock)

    def _clear_up(self) -> None:
        """What the dead left: a cell whose row they had written is never taken again."""
        for path in self.folder.glob("*.json"):
            if is_stale(path) and self._take_over(path, ""):
                self._give_up(path)

    def _give_up(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._held.discard(path)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            for path in list(self._held):
                with contextlib.suppress(OSError):
                    os.utime(path)


@dataclass(frozen=True, slots=True)
class Claim:
    """A cell that somebody took, by its key and its title ("" where the file cannot be read). ``heartbeat``
    is the age of the last sign of life in seconds; a stale claim is one whose owner ended (on this machine),
    or gave no sign for too long: the next worker takes it over."""

    key: str
    cell: str
    worker: str
    heartbeat: float
    stale: bool


def read_claims(folder: Path) -> list[Claim]:
    """The claims of a results folder, in the order of their names. One that goes meanwhile is left out."""
    found = (read_claim(path) for path in sorted((folder / ".claims").glob("*.json")))
    return [claim for claim in found if claim is not None]


def read_claim(path: Path) -> Claim | None:
    """The claim in a file; None where nobody claims."""
    try:
        age = max(0.0, time.time() - path.stat().st_mtime)
        owner = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        owner = None
    if not isinstance(owner, dict) or "host" not in owner:
        return Claim(path.stem, "", "unknown", age, age > STALE_SECONDS)
    ended = owner["host"] == socket.gethostname() and owner.get("started") != _started(owner.get("pid"))
    title, worker = str(owner.get("cell") or ""), f"{owner['host']} process {owner.get('pid')}"
    return Claim(path.stem, visible(title), visible(worker), age, ended or age > STALE_SECONDS)


def is_stale(path: Path) -> bool:
    """Whether nobody who lives holds the cell."""
    claim = read_claim(path)
    return claim is None or claim.stale


def is_being_worked_on(folder: Path) -> bool:
    """Whether some process opened the folder for work and has not closed it; it may hold no cell just now."""
    return (folder / ".claims").is_dir()


def _myself() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def _started(pid: Any) -> str | None:
    """What tells this process from a later one of the same number; None when there is no such process."""
    try:
        os.kill(int(pid), 0)
    except (TypeError, ValueError, OverflowError, ProcessLookupError):
        return None
    except PermissionError:
        pass
    try:
        fields = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return "alive"


def prepare_folder(folder: str | Path) -> Path:
    """The results folder, made and known to be writable before any work is done."""
    folder = Path(folder)
    probe = folder / f".write-test-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("", encoding="utf-8")
        probe.unlink()
        _sweep_up(folder)
    except (OSError, ValueError) as error:  # a name with a null character
        why = getattr(error, "strerror", None) or error
        raise QuantKVError(f"cannot write results to {folder}: {why}; choose another with --out") from None
    return folder


def _sweep_up(folder: Path) -> None:
    """Half-written files of workers that were killed while writing."""
    for path in folder.glob(".*.tmp"):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            path.unlink(missing_ok=True)
