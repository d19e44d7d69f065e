"""Pages that `nav` does not name stand under "Guides": a new page needs no second edit to be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    named = set(_paths(config.nav))
    guides = next(entry["Guides"] for entry in config.nav if "Guides" in entry)
    guides += [path.name for path in sorted(Path(config.docs_dir).glob("*.md")) if path.name not in named]
    return config


def _paths(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [path for part in parts for path in _paths(part)]
