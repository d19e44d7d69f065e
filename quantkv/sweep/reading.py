"""Reading the YAML a user wrote, and laying ``--set`` values over it, before any of it is believed."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from quantkv.errors import QuantKVError

TAG = "tag:yaml.org,2002:"
MERGE = f"{TAG}merge"
PLAIN = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9](_?[0-9])*|0x[0-9a-fA-F]+|0b[01]+)",
    "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?",
    "merge": r"<<",
}
REFUSED = {
    r"[-+]?0o?[0-9_]+": "is an octal number to some readers: write it without the zero in front",
    r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?": "is a number in base 60 to some readers: write it out",
    r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)": "is not finite, and no setting takes that: leave it out",
    r"None": "is not YAML's word for nothing: write null",
}
"""What is refused where it is not in quotes, and what to write instead."""


class Loader(yaml.SafeLoader):
    """YAML as it looks: plain words are what a reader takes them for.

    PyYAML reads YAML 1.1, where 0200 is 128, 1:30 is 90, ``no`` is false, a date is no text, and the last
    of two equal keys wins without a word. Here words and dates are text, as in YAML 1.2, what may be meant
    in two ways is refused by its line, and keys come once and are merged as YAML says.

    No library does as much: ruamel.yaml reads YAML 1.2 and refuses equal keys, but 0200 is 200 there, a date
    is a date and an alias into itself an empty mapping; OmegaConf lays ``--set`` values over, but reads YAML
    1.1 and puts settings inside a single value.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping with every key once, merge keys (``<<``) too."""
        node = super().compose_mapping_node(anchor)
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self._key(key_node)
            if key in seen:
                hint = "; give it a list, as in <<: [*a, *b]" if key == "<<" else ""
                _refuse(key_node, f"{key!r} is given twice{hint}")
            seen.add(key)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merged mappings before the own pairs, the first of a list last: of equal keys the last counts."""
        merges = [value for key, value in node.value if key.tag == MERGE]
        sources = [s for m in merges for s in (m.value if isinstance(m, yaml.SequenceNode) else [m])]
        merged: list[Any] = []
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                _refuse(source, "<< takes a mapping or a list of mappings")
            self.flatten_mapping(source)
            merged += source.value
        node.value = merged + [pair for pair in node.value if pair[0].tag != MERGE]

    def _key(self, node: yaml.Node) -> Hashable:
        if not isinstance(node, yaml.ScalarNode):
            _refuse(node, "a key must be a plain value")
        key: Hashable = node.value if node.tag == MERGE else self.construct_object(node)
        return key


def _refuse(node: yaml.Node, problem: str) -> NoReturn:
    raise QuantKVError(f"line {node.start_mark.line + 1}: {problem}")


def _refuse_scalar(_: Loader, node: yaml.ScalarNode) -> NoReturn:
    why = next((why for pattern, why in REFUSED.items() if re.fullmatch(pattern, node.value)), "is refused")
    _refuse(node, f"{node.value} {why}, or put it in quotes if it is text")


Loader.yaml_implicit_resolvers = {}
for _pattern in REFUSED:
    Loader.add_implicit_resolver("quantkv:refused", re.compile(f"({_pattern})$"), None)
for _name, _pattern in PLAIN.items():
    Loader.add_implicit_resolver(TAG + _name, re.compile(f"({_pattern})$"), None)
Loader.add_constructor("quantkv:refused", _refuse_scalar)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise QuantKVError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise QuantKVError(f"{path} is not UTF-8 text") from error
    value = parse_yaml(text, where=str(path))
    if not isinstance(value, dict):
        found = "nothing" if value is None else type(value).__name__
        raise QuantKVError(f"{path}: expected a mapping such as 'schema: 1', found {found}")
    return value


def parse_yaml(text: str, *, where: str) -> Any:
    """One YAML document; every problem is one line that says where it is."""
    try:
        return _copy(yaml.load(text, Loader=Loader))
    except QuantKVError as error:
        raise QuantKVError(f"{where}, {error}") from None
    except RecursionError:
        raise QuantKVError(f"{where}: nested too deeply, as by an alias that contains itself") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise QuantKVError(f"{where}{line}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, ValueError) as error:  # a tag such as !!int before something else
        raise QuantKVError(f"{where}: {' '.join(str(error).split())}") from None


def apply_overrides(raw: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """``raw`` with ``a.b=value`` laid over it; values are YAML, ``models.0.dtype`` reaches into a list."""
    result: dict[str, Any] = _copy(raw)
    for override in overrides:
        path, separator, text = override.partition("=")
        keys = path.strip().split(".")
        if not separator or not all(keys):
            raise QuantKVError(f"--set {override}: expected key=value, such as contexts=[512,1024]")
        _assign(result, keys, parse_yaml(text, where=f"--set {override}"), override)
    return result


def _assign(target: Any, keys: list[str], value: Any, override: str) -> None:
    *path, last = keys
    for depth, key in enumerate(path):
        slot = _slot(target, key, ".".join(path[:depth]), override)
        if isinstance(target, dict) and target.get(slot) is None:
            target[slot] = {}
        target = target[slot]
    target[_slot(target, last, ".".join(path), override)] = value


def _slot(target: Any, key: str, path: str, override: str) -> str | int:
    if isinstance(target, dict):
        return key
    if isinstance(target, list):
        if key.isdigit() and int(key) < len(target):
            return int(key)
        raise QuantKVError(
            f"--set {override}: {path} is a list of {len(target)}; use {path}.0 or give a whole list"
        )
    raise QuantKVError(
        f"--set {override}: {path} holds the single value {target!r}, so nothing can be set inside it"
    )


def _copy(value: Any) -> Any:
    """Every part by itself, those too that an alias shares: what is set in one place stands in no other."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
