"""What a sweep file names: a format (a preset, a short string, either of them with per-layer overrides, the
baseline, or a peer), and files, from the sweep's own folder where they lie there, else from where we are.

Parsing happens while the file is validated, so that a wrong name stops a sweep before it loads a model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from quantkv.arms.arm import BASELINE, Arm, Format
from quantkv.peers.peer import PREFIX, parse_peer
from quantkv.plugins import ImportedFile, import_file, imported
from quantkv.spec.specs import CacheSpec, parse_spec
from quantkv.wording.escapes import visible

FOLDER = "folder"
"""The key of the file's folder in the context that settings are validated with."""


def located(name: str, context: Mapping[str, Any] | None) -> str:
    """The whole path of ``name``, so that workers elsewhere find it; ``name`` where nothing lies there."""
    folders = [Path(context[FOLDER])] if context else []
    found = (folder.absolute() / Path(name).expanduser() for folder in (*folders, Path()))
    return next((str(path) for path in found if os.path.exists(path)), name)


def imported_files(value: Any, info: ValidationInfo) -> tuple[ImportedFile, ...]:
    """All files that this process has imported by now, with those named in a sweep."""
    for path in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(path, str):
            raise ValueError(f"{path!r} is no Python file that registers codecs, such as my_codec.py")
        import_file(located(path, info.context))
    return imported()


class FormatEntry(BaseModel):
    """``int4-head``, or ``{name: mixed, spec: int4-head, layers: {0-1: fp16, -1: int8-head}}``; ``dynamic``;
    ``peer:quanto-int4``, or ``{peer: kvpress-knorm-0.5, python: /path/to/bin/python}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    spec: str | None = None
    layers: dict[str, str] = {}
    peer: str | None = None
    python: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            value = {"peer": value} if value.startswith(PREFIX) else {"name": value}
        if isinstance(value, dict) and "/" in str(python := value.get("python")):
            value = {**value, "python": located(str(python), info.context)}
        if isinstance(value, dict) and isinstance(peer := value.get("peer"), str):
            return {"name": peer.removeprefix(PREFIX)} | value
        if isinstance(value, dict) and isinstance(layers := value.get("layers"), dict):
            named = {str(layer): spec for layer, spec in layers.items()}
            if len(named) < len(layers):
                raise ValueError(f"layers: one is given twice, as a number and as text: {', '.join(named)}")
            return {**value, "layers": named}
        return value

    @model_validator(mode="after")
    def _parse(self) -> FormatEntry:
        if visible(self.name) != self.name:
            raise ValueError(f"the name {self.name!r} has characters that cannot be shown")
        if self.peer is not None and (self.spec or self.layers):
            raise ValueError("a peer takes a name and python; a format on a press is PRESS+FORMAT")
        if self.python is not None and self.peer is None:
            raise ValueError("python names the interpreter of a peer; give peer")
        if self.name == BASELINE and (self.layers or self.peer or self.spec not in (None, BASELINE)):
            raise ValueError(f"{BASELINE} is the cache that others are held against: give this another name")
        self.with_policy()
        return self

    @property
    def label(self) -> str:
        return self.name

    def known_by(self, spec: str) -> str:
        """What a sweep measures once, under however many labels."""
        return spec

    def with_policy(
        self, sinks: int | None = None, recent: int | None = None, flush: int | None = None
    ) -> Arm:
        """The spec under a sweep's policy; what the string spells out and a published policy win over it. A
        peer keeps its own, and None is the ``DynamicCache``."""
        policy = {"sinks": sinks, "recent": recent, "flush": flush}
        if self.peer is not None:
            return parse_peer(self.peer, python=self.python, **policy)
        if (self.spec or self.name) == BASELINE and not self.layers:
            return None
        spec = parse_spec(self.spec or self.name, **policy)
        layers: dict[str | int, str | CacheSpec] = {
            layer: parse_spec(text, **policy) for layer, text in self.layers.items()
        }
        return spec.with_layers(layers) if layers else spec


class GivenFormat(FormatEntry):
    """A format that is there already, as a call gives it: every label of it is measured."""

    _arm: Arm = PrivateAttr(None)

    @classmethod
    def of(cls, label: str, arm: Format) -> GivenFormat:
        entry = cls.model_construct(name=label)
        entry._arm = None if isinstance(arm, str) else arm  # the one text is the baseline's name
        return entry

    def known_by(self, spec: str) -> str:
        return self.label

    def with_policy(self, *_: int | None, **__: int | None) -> Arm:
        return self._arm
