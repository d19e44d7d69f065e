"""What a model's layers cache and how large its weights are, found without data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from quantkv.cache.layer_shapes import LayerShape, model_without_data, shapes_without_data
from quantkv.planner.stored_weights import quantization_of, stored_nbytes


@dataclass(frozen=True)
class ModelShape:
    """`parameters` counts numbers, tied ones once; `unpacked_nbytes` are bytes of parameters and buffers in
    `dtype`, save what the model keeps in another one; `stored_nbytes` those of a quantized checkpoint, where
    it says how it is stored."""

    layers: tuple[LayerShape, ...]
    parameters: int
    unpacked_nbytes: int
    stored_nbytes: int | None
    dtype: torch.dtype

    @property
    def weights_nbytes(self) -> int:
        return self.unpacked_nbytes if self.stored_nbytes is None else self.stored_nbytes


def probe(config: PreTrainedConfig, dtype: torch.dtype) -> ModelShape:
    """Shapes of the causal language model that transformers builds for a configuration.

    Raises UnsupportedError where there is none, or where it cannot run without data.
    """
    model = model_without_data(config, dtype)
    layers = tuple(shapes_without_data(model))
    tensors, quantization = [*model.parameters(), *model.buffers()], quantization_of(config)
    return ModelShape(
        layers,
        sum(p.numel() for p in model.parameters()),
        sum(t.nbytes for t in tensors),
        None if quantization is None else stored_nbytes(model, quantization),
        dtype,
    )
