"""The house: rooms (folders of the package and files beside them) one above another. Imports go down.

Own lines and not import-linter, which knows layers, but neither the longest chain nor what a folder says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import quantkv

ROOMS = """
    errors files cores quiet version named
    wording plugins data
    codecs policy
    store
    spec engines
    cache
    models instruments
    decode_exact peers
    arms
    rows
    drawing
    studies
    planner
    measurements
    checking report
    sweep
    comparison watching harness testing bench
    commands
    registration
    __init__
"""
"""From the ground up. A room imports from rooms of lines above its own here, and from itself."""

FLOOR = {room: floor for floor, line in enumerate(ROOMS.strip().splitlines()) for room in line.split()}
LONGEST_CHAIN = 14

PACKAGE = Path(quantkv.__file__).parent
FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
FILES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def imported(tree: ast.AST) -> set[str]:
    """The files of the package that a file imports anywhere: at its head, in a function, for types alone."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    own = {name.removeprefix("quantkv.") for name in names if name.startswith("quantkv.")}
    own |= {"__init__"} if "quantkv" in names else set()
    return {target(name) for name in own}


def target(name: str) -> str:
    """The file that ``quantkv.<name>`` is or lies in; else a name of the face."""
    return name if name in FILES else name.rpartition(".")[0] or "__init__"


IMPORTS = {name: imported(ast.parse(path.read_text())) - {name} for name, path in FILES.items()}


def room(name: str) -> str:
    return name.partition(".")[0]


@cache
def chain(above: str) -> tuple[str, ...]:
    """The longest way down from a room."""
    below = {room(to) for name, all_ in IMPORTS.items() if room(name) == above for to in all_}
    ways = [chain(one) for one in below if FLOOR[one] < FLOOR[above]]
    return above, *max(ways, key=len, default=())


def in_a_circle(name: str) -> bool:
    seen: set[str] = set()
    ahead = [*IMPORTS[name]]
    while ahead:
        if (one := ahead.pop()) not in seen:
            seen.add(one)
            ahead += IMPORTS[one]
    return name in seen


def says_who_may_import_it(path: Path) -> bool:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return "May be imported by" in said or "Imported by nothing" in said


def upward() -> Iterator[str]:
    for name, all_ in IMPORTS.items():
        for to in all_:
            if room(name) != room(to) and FLOOR[room(name)] <= FLOOR[room(to)]:
                yield f"{name} -> {to}"


def violations() -> Iterator[str]:
    yield from upward()
    yield from (f"{name} in a circle" for name in FILES if in_a_circle(name))
    folders = [name for name, path in FILES.items() if path.name == "__init__.py" and name != "__init__"]
    yield from (f"{name} silent" for name in folders if not says_who_may_import_it(FILES[name]))


def test_imports_go_down_without_circles_and_folders_say_so() -> None:
    assert sorted(violations()) == []


def test_every_room_has_a_floor() -> None:
    assert {room(name) for name in FILES} == set(FLOOR)


def test_no_way_down_is_long() -> None:
    longest = max((chain(one) for one in FLOOR), key=len)
    assert len(longest) <= LONGEST_CHAIN, " -> ".join(longest)
