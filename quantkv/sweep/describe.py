"""What a format is, without running anything: the table of presets, and a model's cache layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from quantkv.arms.formats import parse_format
from quantkv.rows.row import strict_json
from quantkv.spec.specs import CacheSpec, presets
from quantkv.spec.tensors import TensorSpec
from quantkv.sweep.config import ModelEntry
from quantkv.sweep.preflight import model_config

HEAD_DIM, KV_HEADS = 64, 4
COUNTERS = ("tokens", "saturated", "packed_at", "deep_rollbacks", "materialized", "padding_from")


def formats_table() -> Table:
    """The presets; bits are those of full pages at head_dim 64."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (
        "name",
        "bits",
        "keys",
        "values",
        "one scale for",
        "sinks",
        "recent",
        "flush",
    ):
        table.add_column(name, justify="right" if name in ("bits", "sinks") else "left")
    for name, spec in presets().items():
        table.add_row(name, *_columns(spec))
    return table


def format_records() -> list[dict[str, Any]]:
    """The same with every value by its name."""
    return [{"name": name} | _record(spec) for name, spec in presets().items()]


def _record(spec: CacheSpec) -> dict[str, Any]:
    key, value = spec.key, spec.value
    both = {"keys": key, "values": value}
    return {
        "spec": str(spec),
        "bits_packed": _bits(spec),
        "sinks": spec.sinks,
        **{f"{name}_codec": str(tensor) for name, tensor in both.items()},
        **{f"{name}_share_a_scale": _sharing(tensor) for name, tensor in both.items()},
        **{f"{name}_recent": tensor.recent for name, tensor in both.items()},
        **{f"{name}_flush": tensor.flush for name, tensor in both.items()},
    }


def _bits(spec: CacheSpec) -> float:
    return spec.bits_packed(head_dim=HEAD_DIM, num_key_value_heads=KV_HEADS)


def _columns(spec: CacheSpec) -> list[str]:
    key, value = spec.key, spec.value
    sharing = _once(_sharing(key), _sharing(value))
    window = [_once(key.recent, value.recent), _once(key.flush, value.flush)]
    return [f"{_bits(spec):g}", str(key), str(value), sharing, str(spec.sinks), *window]


def _once(key: object, value: object) -> str:
    return str(key) if key == value else f"{key} / {value}"


def _sharing(tensor: TensorSpec) -> str:
    if tensor.sharing is None:
        return "none"
    unit = {"channel": "tokens", "token": "channels"}.get(tensor.sharing)
    return f"{tensor.sharing} ({tensor.group} {unit})" if unit else tensor.sharing


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
    from quantkv.cache.quantized import QuantizedCache

    spec, config = parse_format(text), _config(model)
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


def _config(model: str) -> Any:
    config = model_config(ModelEntry(id=model))
    if config is not None:
        return config
    from quantkv.models import load_model

    return load_model(model)[0].config


def _fill(cache: Any, config: Any, context: int) -> int:
    """Append ``context`` tokens of zeros to every layer, whose bytes are those of any other tokens, and count
    the elements appended."""
    import torch

    from quantkv.planner.probe import probe

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
    table = Table(*names, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for record in records:
        table.add_row(*("-" if record[name] != record[name] else str(record[name]) for name in names))
    return table
