"""Reading the YAML a user wrote, and laying ``--set`` values over it, before any of it is believed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from quantkv.errors import QuantKVError
from quantkv.sweep.scalars import Loader


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
