"""A stand-in for kvpress: the same protocol (a context manager that hooks attention layers), known answers.

`KnormPress` drops the tokens at DROPPED, whatever they hold, so that a mask over the full cache says what the
pruned one must give.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

DROPPED = range(8, 24)
SOURCE = """
from contextlib import contextmanager

import torch


class KnormPress:
    def __init__(self, compression_ratio):
        self.compression_ratio = compression_ratio

    @contextmanager
    def __call__(self, model):
        layers = [layer.self_attn for layer in model.model.layers]
        hooks = [layer.register_forward_hook(self.prune, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def prune(self, module, inputs, kwargs, output):
        cache = kwargs.get("cache")
        layer = (cache if cache is not None else kwargs["past_key_values"]).layers[module.layer_idx]
        kept = [i for i in range(layer.keys.shape[2]) if i not in {dropped}]
        layer.keys, layer.values = (x[:, :, kept].contiguous() for x in (layer.keys, layer.values))


class TOVAPress(KnormPress):
    def prune(self, module, inputs, kwargs, output):
        pass


class SnapKVPress(KnormPress):
    def __init__(self, compression_ratio):
        print("libraries print as they like")
        raise ValueError("no snap today")
"""


def install(folder: Path, needs: str = "transformers") -> Path:
    """Put the package, with its metadata, into a folder for sys.path."""
    (folder / "kvpress.py").write_text(SOURCE.replace("{dropped}", repr(DROPPED)))
    info = folder / "kvpress-0.0.1.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: kvpress", "Version: 0.0.1", f"Requires-Dist: {needs}"]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    return folder


def interpreter(folder: Path) -> str:
    """This Python, started so that it sees `folder` and nothing of quantkv's own path."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)
