"""Relative paths in a sweep file: from its own folder where something lies there, else from where we are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from quantkv.plugins import ImportedFile, import_file, imported

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
