"""A sense of relevance: how far the same model in bfloat16 is from the float32 one that is measured."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

PRECISE = (torch.float32, torch.float64)


def no_bf16_twin(model: Any) -> str | None:
    """Why a model has no bfloat16 twin to be compared with; None where it has one."""
    if model.dtype not in PRECISE:
        return f"the model runs in {str(model.dtype).removeprefix('torch.')} itself"
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return "the model is spread over devices, so it cannot be copied"
    return None


def bf16_twin(model: Any) -> Any:
    """A copy of the model as loading it in bfloat16 would make it, without a second copy of its float32.

    Parameters and saved buffers are cast; tables that a model computes itself, such as the frequencies of
    rotary positions, stay in float32 and are shared.
    """
    saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    replaced: dict[int, Any] = {}
    for parameter in model.parameters():
        replaced[id(parameter)] = nn.Parameter(_cast(parameter), requires_grad=False)
    for buffer in model.buffers():
        replaced[id(buffer)] = _cast(buffer) if id(buffer) in saved else buffer
    return copy.deepcopy(model, replaced)


def _cast(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
