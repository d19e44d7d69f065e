"""What a format is, without running anything: the table of presets, and a model's cache layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from quantkv.named import presets
from quantkv.spec import CacheSpec, TensorSpec
from quantkv.sweep.config import ModelEntry
from quantkv.sweep.formats import parse_format
from quantkv.sweep.preflight import model_config

HEAD_DIM, KV_HEADS = 64, 4
COUNTERS = ("tokens", "deep_rollbacks", "materialized", "padding_from")


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


def _columns(spec: CacheSpec) -> list[str]:
    bits = spec.bits_packed(head_dim=HEAD_DIM, num_key_value_heads=KV_HEADS)
    key, value = spec.key, spec.value
    sharing = _once(_sharing(key), _sharing(value))
    window = [_once(key.recent, value.recent), _once(key.flush, value.flush)]
    return [f"{bits:g}", str(key), str(value), sharing, str(spec.sinks), *window]


def _once(key: object, value: object) -> str:
    return str(key) if key == value else f"{key} / {value}"


def _sharing(tensor: TensorSpec) -> str:
    if tensor.sharing is None:
        return "none"
    unit = {"channel": "tokens", "token": "channels"}.get(tensor.sharing)
    return f"{tensor.sharing} ({tensor.group} {unit})" if unit else tensor.sharing


def cache_description(model: str, text: str, context: int) -> Iterator[RenderableType]:
    """A table with a row per layer, and the bytes ``context`` tokens take beside those of a 16-bit cache."""
    from quantkv.cache import QuantizedCache

    spec, config = parse_format(text), _config(model)
    cache = QuantizedCache(config, spec)
    half = 2 * _fill(cache, config, context)
    layers = f"{cache.num_quantized_layers} of {len(cache.layers)} layers"
    yield f"{spec.name} on {model}: {layers}, {context} tokens"
    yield _frame_table(cache.describe().reset_index())
    nbytes = cache.nbytes
    yield f"{nbytes:,} bytes, {nbytes / half:.3f} of the {half:,} bytes of a 16-bit cache"
    if cache.num_quantized_layers:
        yield f"{cache.effective_bits:.2f} bits per value, with sinks, window, reserve and slack"


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


def _frame_table(frame: Any) -> Table:
    names = [str(name) for name in frame.columns if name not in COUNTERS]
    table = Table(*names, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for record in frame.to_dict("records"):
        table.add_row(*("-" if record[name] != record[name] else str(record[name]) for name in names))
    return table
