"""The page api.md: every public name of the package, from its signature and docstring."""

from __future__ import annotations

from importlib import import_module

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import quantkv

EXTENDING = {
    "codecs": (
        "Codec",
        "Field",
        "Sharing",
        "Place",
        "Tokens",
        "Codes",
        "Scale",
        "Sparse",
        "LowRank",
        "CodecFamily",
        "register_codec",
        "Map",
        "register_map",
    ),
    "policy": ("Window", "register_policy"),
    "testing": ("check_codec",),
}
TEXT = """# Python

Names of the package load on first use: `import quantkv` imports no torch. The command line is
the same code; `quantkv --help` and `quantkv COMMAND --help` describe it.

"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "api.md", content=TEXT + reference()))
    return files


def reference() -> str:
    """A directive for each name, where it is defined: public names, then what extensions are made of."""
    names = [name for name in quantkv.__all__ if name != "__version__"]
    public = [_directive(getattr(quantkv, name)) for name in names]
    parts = [
        _directive(getattr(import_module(f"quantkv.{module}"), name))
        for module, names in EXTENDING.items()
        for name in names
    ]
    return "\n".join(public + parts)


def _directive(thing: type) -> str:
    return f"::: {thing.__module__}.{thing.__qualname__}\n"
