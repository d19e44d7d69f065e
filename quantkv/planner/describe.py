"""A model's cache in one format, layer by layer, without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import RenderableType
from rich.table import Table

from quantkv.cache.quantized import QuantizedCache
from quantkv.models import load_model
from quantkv.models.loading import config_alone
from quantkv.planner.probe import probe
from quantkv.rows.row import strict_json
from quantkv.spec.specs import parse_spec
from quantkv.wording.streams import bare_table

COUNTERS = ("tokens", "saturated", "packed_at", "deep_rollbacks", "materialized", "padding_from")


@dataclass(frozen=True, kw_only=True)
class Description:
    """A model's cache of ``context`` tokens in one format: its bytes beside those of a 16-bit cache, the bits
    of a value with sinks, window, reserve and slack (None where no layer packs), and a record per layer."""

    model: str
    format: str
    spec: str
    context: int
    layers_quantized: int
    layers_total: int
    cache_bytes: int
    bytes_16bit: int
    effective_bits: float | None
    layers: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        return strict_json(asdict(self))

    def parts(self) -> Iterator[RenderableType]:
        """A table with a row per layer between lines about the whole."""
        layers = f"{self.layers_quantized} of {self.layers_total} layers"
        yield f"{self.format} on {self.model}: {layers}, {self.context} tokens"
        yield _layer_table(self.layers)
        share, half = self.cache_bytes / self.bytes_16bit, self.bytes_16bit
        yield f"{self.cache_bytes:,} bytes, {share:.3f} of the {half:,} bytes of a 16-bit cache"
        if self.effective_bits is not None:
            yield f"{self.effective_bits:.2f} bits per value, with sinks, window, reserve and slack"


def describe_cache(model: str, text: str, context: int) -> Description:
    """What a cache holds after ``context`` tokens, from a model's configuration alone where it has one."""
    spec, config = parse_spec(text), config_alone(model)
    if config is None:
        config = load_model(model)[0].config
    cache = QuantizedCache(config, spec)
    half = 2 * _fill(cache, config, context)
    return Description(
        model=model,
        format=spec.name,
        spec=str(spec),
        context=context,
        layers_quantized=cache.num_quantized_layers,
        layers_total=len(cache.layers),
        cache_bytes=cache.nbytes,
        bytes_16bit=half,
        effective_bits=cache.effective_bits if cache.num_quantized_layers else None,
        layers=cache.describe().reset_index().to_dict("records"),
    )


def _fill(cache: Any, config: Any, context: int) -> int:
    """Append ``context`` tokens of zeros to every layer, whose bytes are those of any other tokens, and count
    the elements appended."""
    elements = 0
    for index, layer in enumerate(probe(config, torch.float32).layers):
        if layer.key is None or layer.value is None:
            continue
        keys, values = (torch.zeros(1, x.heads, context, x.width) for x in (layer.key, layer.value))
        cache.update(keys, values, index)
        elements += keys.numel() + values.numel()
    return elements


def _layer_table(records: list[dict[str, Any]]) -> Table:
    names = [str(name) for name in records[0] if name not in COUNTERS] if records else []
    table = bare_table(names, left=names)
    for record in records:
        table.add_row(*("-" if record[name] != record[name] else str(record[name]) for name in names))
    return table
