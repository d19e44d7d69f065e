"""`import quantkv` alone makes `attn_implementation="quantkv"` known to transformers, and loads neither
transformers nor torch for it.

Where transformers' interfaces are loaded already, the names are registered at once; else the import that
loads them does it. What is registered loads `quantkv.cache.hooks` when a model first calls it, and puts the
functions themselves in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from quantkv.cache.names import IMPLEMENTATION

_INTERFACES = "transformers.modeling_utils"


def announce() -> None:
    """Have the name known from the moment that transformers' interfaces are loaded."""
    if _INTERFACES in sys.modules:
        _register()
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def _register() -> None:
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)


def _attention(*args: Any, **kwargs: Any) -> Any:
    from quantkv.cache.hooks import quantkv_attention, register

    register()
    return quantkv_attention(*args, **kwargs)


def _mask(*args: Any, **kwargs: Any) -> Any:
    from quantkv.cache.hooks import quantkv_mask, register

    register()
    return quantkv_mask(*args, **kwargs)


class _Watch:
    """Finds no module itself: the interfaces' module, as the other finders find it, registers once it has
    run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _INTERFACES:
            return None
        others = [f for f in sys.meta_path if not isinstance(f, _Watch) and hasattr(f, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            _register()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = run_and_register
