"""What comes from outside: registered by a call, offered by an installed package, or in a file of one's own.

Every registered thing remembers where it came from, so that two of one name can be told apart, rows say whose
rule made their numbers, and a rule that changed behind its name has other keys.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from quantkv.errors import QuantKVError

T = TypeVar("T")
VARIABLE = "QUANTKV_IMPORT"
"""Files that this process and those it starts import, each as PATH or PATH#SHA256, joined as in PATH."""
HINT = "one in a file of your own comes with --import FILE, or import: FILE in a sweep's YAML"


@dataclass(frozen=True)
class Origin:
    """Who registered something. `version` is that of a package, or the SHA-256 of a file."""

    name: str
    version: str | None = None


@dataclass(frozen=True)
class ImportedFile:
    path: str
    sha256: str

    def __reduce__(self) -> Any:
        """Where it is read again it is imported, before what it registered is asked for."""
        return import_file, (self.path, self.sha256)


_origin: ContextVar[Origin | None] = ContextVar("_origin", default=None)
_files: dict[str, ImportedFile] = {}


class NameTaken(QuantKVError):
    """Two things of one name."""


class Registry(Generic[T]):
    """Things of one kind by their names, each name taken once. `group` is the entry-point group under which
    packages offer them, and `take` registers what an entry point holds."""

    def __init__(self, what: str, group: str, take: Callable[[str, Any], None]) -> None:
        self.what, self.group, self.take = what, group, take
        self.known: dict[str, tuple[T, Origin]] = {}
        self._asked = False

    def add(self, name: str, value: T, module: str) -> None:
        """Register what `module` made; the very same thing may come twice."""
        origin = _origin.get() or Origin(module)
        if name in self.known and self.known[name][0] != value:
            known = f"a {self.what} named {name!r} is registered already, by {self.known[name][1].name}"
            raise NameTaken(f"{known}; another comes from {origin.name}")
        if name not in self.known or origin.version:
            self.known[name] = value, origin

    def names(self) -> list[str]:
        self._ask()
        return sorted(self.known)

    def get(self, name: str) -> T:
        """QuantKVError naming the legal ones where there is none."""
        if name not in self.names():
            legal = ", ".join(self.names())
            raise QuantKVError(f"unknown {self.what} {name!r}; legal: {legal}; {HINT}")
        return self.known[name][0]

    def origin(self, name: str) -> Origin:
        self.get(name)
        return self.known[name][1]

    def _ask(self) -> None:
        """Once, ask packages and files; whatever these do meanwhile sees what is registered so far."""
        if self._asked:
            return
        self._asked = True
        try:
            for point in entry_points(group=self.group):
                self._take(point)
            for item in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
                path, _, sha256 = item.partition("#")
                import_file(path, sha256 or None)
        except BaseException:
            self._asked = False
            raise

    def _take(self, point: EntryPoint) -> None:
        name, version = (point.dist.name, point.dist.version) if point.dist else (point.value, None)
        with _from(Origin(f"package {name}", version)):
            try:
                self.take(point.name, point.load())
            except NameTaken:  # which of two is meant, nobody can say
                raise
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"{self.what} {point.name!r} of package {name} is left out ({words})", stacklevel=2
                )


def import_file(path: str | Path, sha256: str | None = None) -> ImportedFile:
    """Run a Python file that registers codecs, policies or kinds of measurement, once in a process; processes
    that this one starts import it too. With `sha256` the file must still hold what it held then."""
    place = str(Path(path).expanduser().resolve())
    if place not in _files:
        try:
            content = Path(place).read_bytes()
        except OSError as error:
            raise QuantKVError(f"cannot import {place}: {error.strerror}") from error
        found = ImportedFile(place, hashlib.sha256(content).hexdigest())
        _check(found, sha256)
        _files[place] = found
        _run(found, content)
        os.environ[VARIABLE] = os.pathsep.join(f"{file.path}#{file.sha256}" for file in _files.values())
    _check(_files[place], sha256)
    return _files[place]


def imported() -> tuple[ImportedFile, ...]:
    """The files that this process has imported."""
    return tuple(_files.values())


def _check(found: ImportedFile, sha256: str | None) -> None:
    if sha256 not in (None, found.sha256):
        raise QuantKVError(f"{found.path} was changed while it was in use; start again")


def _run(found: ImportedFile, content: bytes) -> None:
    module = ModuleType(f"quantkv_import_{found.sha256[:16]}")
    module.__file__ = found.path
    sys.modules[module.__name__] = module
    try:
        with _from(Origin(Path(found.path).name, found.sha256)):
            exec(compile(content, found.path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del _files[found.path], sys.modules[module.__name__]
        words = str(error) if isinstance(error, QuantKVError) else f"{type(error).__name__}: {error}"
        raise QuantKVError(f"cannot import {found.path}: {words}") from error


@contextmanager
def _from(origin: Origin) -> Iterator[None]:
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)
