"""What a sweep calls its models and its formats, in reports too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quantkv.arms.arm import BASELINE
from quantkv.rows.axes import formats
from quantkv.rows.files import Row
from quantkv.rows.settings import ModelEntry
from quantkv.sweep.config import Sweep
from quantkv.wording.parts import titles

TOLD = ("dtype", "revision", "attn", "device", "device_map")


class ModelNames:
    """A title for each model: its id, and what not all of them share: two of one id may differ in dtype."""

    def __init__(self, models: Iterable[ModelEntry]) -> None:
        self.models: list[ModelEntry] = []
        for model in models:
            if model not in self.models:
                self.models.append(model)
        self._titles = titles([_parts(model) for model in self.models])

    @property
    def several(self) -> bool:
        return len(self.models) > 1

    def of(self, model: ModelEntry) -> str:
        return self._titles[self.models.index(model)]


def _parts(model: ModelEntry) -> dict[str, str]:
    return {"model": model.id} | {name: str(getattr(model, name) or "") for name in TOLD}


def current_names(rows: Iterable[Row], sweep: Sweep) -> list[Row]:
    """Rows under the names that the sweep gives its formats now, found by what was measured; a row keeps its
    own where the sweep has several."""
    names: dict[str, list[str]] = {}
    limits = (getattr(sweep.section(kind), "formats", None) for kind in sweep.kinds)
    for only in (None, *filter(None, limits)):
        for label, spec in formats(sweep, only):
            names.setdefault(BASELINE if spec is None else str(spec), []).append(label)
    return [_called(row, names) for row in rows]


def _called(row: Row, names: Mapping[str, list[str]]) -> Row:
    asked: dict[str, Any] = row["requested"]
    known = names.get(str(asked.get("spec")), [])
    if not known or asked["format"] in known:
        return row
    return row | {"requested": asked | {"format": known[0]}}
