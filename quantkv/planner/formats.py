"""The presets and what they take, in a table and for a program."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from quantkv.spec.specs import CacheSpec, presets
from quantkv.spec.tensors import TensorSpec
from quantkv.wording.streams import bare_table

HEAD_DIM, KV_HEADS = 64, 4


def formats_table() -> Table:
    """The presets; bits are those of full pages at head_dim 64."""
    names = ("name", "bits", "keys", "values", "one scale for", "sinks", "recent", "flush")
    table = bare_table(names, left=[name for name in names if name not in ("bits", "sinks")])
    for record in format_records():
        bits, codecs = f"{record['bits_packed']:g}", (record["keys_codec"], record["values_codec"])
        sharing, recent, flush = (_once(record, part) for part in ("share_a_scale", "recent", "flush"))
        table.add_row(record["name"], bits, *codecs, sharing, str(record["sinks"]), recent, flush)
    return table


def _once(record: dict[str, Any], part: str) -> str:
    key, value = record[f"keys_{part}"], record[f"values_{part}"]
    return str(key) if key == value else f"{key} / {value}"


def format_records() -> list[dict[str, Any]]:
    """The same with every value by its name."""
    return [{"name": name} | _record(spec) for name, spec in presets().items()]


def _record(spec: CacheSpec) -> dict[str, Any]:
    both = {"keys": spec.key, "values": spec.value}
    return {
        "spec": str(spec),
        "bits_packed": spec.bits_packed(head_dim=HEAD_DIM, num_key_value_heads=KV_HEADS),
        "sinks": spec.sinks,
        **{f"{name}_codec": str(tensor) for name, tensor in both.items()},
        **{f"{name}_share_a_scale": _sharing(tensor) for name, tensor in both.items()},
        **{f"{name}_recent": tensor.recent for name, tensor in both.items()},
        **{f"{name}_flush": tensor.flush for name, tensor in both.items()},
    }


def _sharing(tensor: TensorSpec) -> str:
    if tensor.sharing is None:
        return "none"
    unit = {"channel": "tokens", "token": "channels"}.get(tensor.sharing)
    return f"{tensor.sharing} ({tensor.group} {unit})" if unit else tensor.sharing
