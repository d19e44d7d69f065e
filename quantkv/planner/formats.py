"""The presets and what they take, in a table and for a program."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from quantkv.spec.specs import CacheSpec, presets
from quantkv.spec.tensors import TensorSpec

HEAD_DIM, KV_HEADS = 64, 4


def formats_table() -> Table:
    """The presets; bits are those of full pages at head_dim 64."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("name", "bits", "keys", "values", "one scale for", "sinks", "recent", "flush"):
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
