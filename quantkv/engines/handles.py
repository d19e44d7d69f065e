"""Storage-free tensors that stand for packed keys or values.

`Cache.update` must return tensors. A handle has the right shape, dtype and device and no bytes; attention
functions that know it read the pages behind it, and any other operation first decodes it, so that every
model stays correct with every attention implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from quantkv.store import View

_PROPERTIES = (
    "shape", "dtype", "device", "layout", "requires_grad", "is_cuda", "is_cpu", "ndim", "is_leaf", "grad_fn",
)  # fmt: skip
_METADATA = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_floating_point, Tensor.is_contiguous,
    Tensor.ndimension,
}  # fmt: skip


class KVHandle(Tensor):
    """Keys or values `[B, H, T, D]` behind a view. `kv` reads them; `materialize()` decodes all of them."""

    kv: View

    @staticmethod
    def __new__(cls, view: View) -> KVHandle:
        handle = Tensor._make_wrapper_subclass(cls, view.shape, dtype=view.dtype, device=view.device)
        handle.kv = view
        return handle

    def materialize(self) -> Tensor:
        """All tokens as a plain contiguous tensor."""
        self.kv.tally.materialized += 1
        return self.kv.read(0, self.kv.shape[2]).contiguous()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"KVHandle(shape={tuple(self.kv.shape)}, packed={self.kv.visible})"

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))


def _plain(x: Any) -> Any:
    return x.materialize() if isinstance(x, KVHandle) else x
