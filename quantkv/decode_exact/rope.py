"""Rotary positions that change with the length of a call, where one pass is not decoding token by token.

`longrope` turns every position of a call by other frequencies once the call reaches past the model's original
length; `dynamic` frequencies change with each token from there on. What is cached keeps the turn it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quantkv.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Reach:
    """The positions of a call, `[1|B, T]` on the CPU, and the length beyond which they turn otherwise."""

    positions: Tensor
    kind: str
    switch: int

    def check(self, ends: Tensor, real: Tensor) -> None:
        """Raise UnsupportedError where decoding would turn some `real` token `[B, T]` otherwise: there it
        comes in a call that ends with column `ends` `[B, T]`."""
        length = int(self.positions.max()) + 1
        if length <= self.switch or not bool(real.any()):
            return
        least = int(self.positions.expand(len(real), -1).gather(1, ends)[real].min()) + 1
        if least < length if self.kind == "dynamic" else least <= self.switch:
            side = "at most" if self.kind == "dynamic" else "lengths on one side of"
            raise UnsupportedError(
                f"the model's {self.kind} rotary positions change beyond {self.switch} tokens, and one pass "
                f"of {length} cannot stand for decoding from {least} on; use {side} {self.switch} tokens"
            )


@contextmanager
def hooked(modules: Iterable[Any], hook: Callable[..., None]) -> Iterator[None]:
    """Inside, `hook` hears of each call of the modules before it runs: module, arguments, named ones."""
    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def reaches(model: Any, tell: Callable[[Reach], None]) -> AbstractContextManager[None]:
    """Inside, `tell` hears how far every call of the model reaches, where its length decides on positions."""

    def told(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = dict(zip(("x", "position_ids", "layer_type"), arguments, strict=False)) | named
        reach = _reach(module, given.get("position_ids"), given.get("layer_type"))
        if reach is not None:
            tell(reach)

    return hooked((module for module in model.modules() if hasattr(module, "rope_type")), told)


def _reach(module: Any, positions: Tensor | None, layer_type: str | None) -> Reach | None:
    kind = module.rope_type if layer_type is None else module.rope_type[layer_type]
    if positions is None:
        return None
    positions = (positions if positions.dim() == 2 else positions[0]).cpu()
    if "dynamic" in kind:
        return Reach(positions, "dynamic", _dynamic_switch(module, layer_type))
    settings = module.config.rope_parameters
    settings = settings if layer_type is None else settings[layer_type]
    if kind == "longrope" or "long_mscale" in settings:
        return Reach(positions, kind, settings["original_max_position_embeddings"])
    return None


def _dynamic_switch(module: Any, layer_type: str | None) -> int:
    """A model that has read beyond its original length goes back below it, not at it."""
    longest = getattr(module, f"{layer_type}_max_seq_len_cached", module.max_seq_len_cached)
    return module.original_max_seq_len - int(longest > module.original_max_seq_len)
