"""The models of a sweep by titles that tell them apart, as in reports: two of one id may differ in dtype."""

from __future__ import annotations

from collections.abc import Iterable

from quantkv.rows.settings import ModelEntry
from quantkv.wording.parts import Parts, titles

TOLD = ("dtype", "revision", "attn", "device", "device_map")


class ModelNames:
    """A title for each model: its id, and what not all of them share."""

    def __init__(self, models: Iterable[ModelEntry]) -> None:
        self._models: list[ModelEntry] = []
        for model in models:
            if model not in self._models:
                self._models.append(model)
        self._titles = titles([_parts(model) for model in self._models])

    @property
    def several(self) -> bool:
        return len(self._models) > 1

    def of(self, model: ModelEntry) -> str:
        return self._titles[self._models.index(model)]


def _parts(model: ModelEntry) -> Parts:
    return {"model": model.id} | {name: str(getattr(model, name) or "") for name in TOLD}
