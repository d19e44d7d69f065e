"""What fits: for each format the bytes of the cache, the longest context and the largest batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, PreTrainedConfig

from quantkv.cache.footprint import Footprint, cache_footprint
from quantkv.cache.layer import QuantizedLayer
from quantkv.cache.layer_shapes import LayerShape
from quantkv.cache.quantized import QuantizedCache
from quantkv.errors import QuantKVError
from quantkv.instruments.arguments import distinct
from quantkv.models.identity import describe_precision
from quantkv.models.loading import load_config
from quantkv.models.names import DTYPES, dtype_named
from quantkv.planner.probe import ModelShape, probe
from quantkv.planner.sizes import Memory, both_sizes, machine_memory, parse_size
from quantkv.planner.stored_weights import quantization_of
from quantkv.spec.specs import CacheSpec, parse_spec, presets

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "dynamic"
PRESETS = "presets"
CONTEXT = 8192
FAR = 2**31
"""No context or batch is searched, or planned for, beyond this."""
MOST_BYTES = 2**63


@dataclass(frozen=True)
class PlanRow:
    """One format. Bytes are those of the cache alone, at the plan's context; `None` for a limit that memory
    does not set, or for a format that the model cannot take (`why` tells)."""

    format: str
    spec: str
    layers_quantized: int = 0
    bytes_per_token: float | None = None
    """What one more token of one sequence costs in the long run, on full pages."""
    bytes_per_sequence: int | None = None
    bytes_total: int | None = None
    bytes_after_prefill: int | None = None
    """Of all rows right after a prompt that came in one call: exact sliding layers let go one step later."""
    longest_context: int | None = None
    largest_batch: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """Rows and what they were planned for; all sizes are bytes."""

    model: str
    family: str
    parameters: int
    weights_dtype: str
    weights_bytes: int
    weights_note: str
    stored: str
    dtype: str
    layers: dict[str, int]
    position_limit: int | None
    memory_bytes: int
    memory_where: str
    allowance_bytes: int
    context: int
    batch: int
    rows: tuple[PlanRow, ...]
    footprints: dict[str, Footprint]

    @property
    def cache_room(self) -> int:
        """Bytes that weights and allowance leave to the cache; negative where they do not fit."""
        return self.memory_bytes - self.allowance_bytes - self.weights_bytes

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        kept = {name: value for name, value in vars(self).items() if name not in ("rows", "footprints")}
        return kept | {"cache_room_bytes": self.cache_room, "rows": [asdict(row) for row in self.rows]}

    def to_frame(self) -> pd.DataFrame:
        """A line per format."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])


def plan(
    model: str | Path | PreTrainedConfig,
    formats: Iterable[str | CacheSpec] | None = None,
    *,
    memory: str | int | None = None,
    context: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    weights_dtype: str | float | None = None,
    allowance: str | int = 0,
    revision: str | None = None,
) -> Plan:
    """Plan a model's cache from its configuration.

    `model` is a configuration or a name as `load_model` takes it; `formats` are names or specs ("presets"
    stands for all of them, the default). `memory` and `allowance` (what to leave for activations, logits and
    allocators) are bytes or text such as "24GB"; memory is this machine's by default. `dtype` is the model's,
    as its configuration says by default; `weights_dtype` a dtype or bits per parameter, where weights are
    held otherwise. Raises QuantKVError for wrong settings, UnsupportedError for models that it cannot serve.
    """
    config = load_config(model, revision=revision) if isinstance(model, str | Path) else model
    run_as = model_dtype(dtype, config)
    shape = probe(config, run_as)
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    at = _count("context", min(CONTEXT, limit or CONTEXT) if context is None else context)
    found = Memory(_bytes(memory), "given") if memory is not None else machine_memory()
    held_as, weights, note = _weights(shape, config, weights_dtype)
    left = _bytes(allowance)
    room = found.nbytes - left - weights
    rows = [_row(config, shape, spec, at, _count("batch", batch), room) for spec in _formats(formats)]
    kinds = [_kind(layer) for layer in shape.layers]
    return Plan(
        model=str(model) if isinstance(model, str | Path) else config.name_or_path or config.model_type,
        family=config.model_type,
        parameters=shape.parameters,
        weights_dtype=held_as,
        weights_bytes=weights,
        weights_note=note,
        stored=describe_precision(config),
        dtype=_name(run_as),
        layers={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        position_limit=limit,
        memory_bytes=found.nbytes,
        memory_where=found.where,
        allowance_bytes=left,
        context=at,
        batch=batch,
        rows=tuple(row for row, _ in rows),
        footprints={row.format: footprint for row, footprint in rows if footprint is not None},
    )


def _row(
    config: PreTrainedConfig, shape: ModelShape, spec: CacheSpec | None, context: int, batch: int, room: int
) -> tuple[PlanRow, Footprint | None]:
    name, text = (BASELINE, BASELINE) if spec is None else (spec.name, str(spec))
    try:
        cache = DynamicCache(config=config) if spec is None else QuantizedCache(config, spec)
        footprint = cache_footprint(shape.layers, cache)
        total = footprint.nbytes(context, batch)
    except QuantKVError as error:
        return PlanRow(name, text, why=str(error)), None
    row = PlanRow(
        name,
        text,
        layers_quantized=getattr(cache, "num_quantized_layers", 0),
        bytes_per_token=footprint.token_nbytes,
        bytes_per_sequence=footprint.nbytes(context),
        bytes_total=total,
        bytes_after_prefill=footprint.nbytes(context, batch, call=context),
        longest_context=longest(footprint, room, batch),
        largest_batch=largest(footprint, room, context),
        why=_exact_layers(cache),
    )
    return row, footprint


def longest(footprint: Footprint, room: int, batch: int = 1) -> int | None:
    """The most tokens per row at which the cache, on its whole way there, fits into `room` bytes; None where
    it never outgrows them."""
    fits = bisect_right(range(1, FAR), room, key=lambda length: footprint.peak_nbytes(length, batch))
    return None if fits == FAR - 1 else fits


def largest(footprint: Footprint, room: int, context: int) -> int | None:
    """The most rows of `context` tokens that fit into `room` bytes; None where a row holds nothing."""
    each = footprint.peak_nbytes(context)
    return max(0, room) // each if each else None


def _exact_layers(cache: Any) -> str:
    """Which layers stay exact, and why: `exact layers (0, 2-4): reason`."""
    if not isinstance(cache, QuantizedCache):
        return ""
    reasons: dict[str, list[int]] = {}
    for index, (layer, why) in enumerate(zip(cache.layers, cache.describe()["why"], strict=True)):
        if not isinstance(layer, QuantizedLayer):
            reasons.setdefault(why, []).append(index)
    return "; ".join(f"exact layers ({_ranges(indices)}): {why}" for why, indices in reasons.items())


def _kind(layer: LayerShape) -> str:
    """What a layer caches, in words: `full attention`, `window of 512`, `window of 512 + fixed state`."""
    attention = f"window of {layer.window}" if layer.window else "full attention"
    parts = {attention: layer.key is not None, "indexer": layer.extra, "fixed state": layer.states}
    return " + ".join(part for part, there in parts.items() if there) or "nothing"


def _ranges(numbers: Sequence[int]) -> str:
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in zip(starts, ends))


def _formats(formats: Iterable[str | CacheSpec] | None) -> list[CacheSpec | None]:
    """The plain cache first, then every format once."""
    found: dict[str, CacheSpec] = {}
    for given in [PRESETS] if formats is None else distinct("formats", formats, "['int4-head']"):
        wanted = presets().values() if given == PRESETS else [given]
        for spec in (each if isinstance(each, CacheSpec) else parse_spec(each) for each in wanted):
            found.setdefault(str(spec), spec)
    return [None, *found.values()]


def model_dtype(name: str | None, config: PreTrainedConfig) -> torch.dtype:
    """The dtype asked for, else the one that the configuration states, else float32."""
    if name is not None:
        return dtype_named(name)
    text = config.get_text_config(decoder=True)
    found = getattr(config, "dtype", None) or getattr(text, "dtype", None) or torch.float32
    return getattr(torch, found) if isinstance(found, str) else found


def _weights(shape: ModelShape, config: PreTrainedConfig, given: str | float | None) -> tuple[str, int, str]:
    """How the weights are held, their bytes, and what to know of those that are stored quantized."""
    if given is None:
        return _stored_weights(shape, config)
    if given in DTYPES:
        return str(given), probe(config, DTYPES[str(given)]).unpacked_nbytes, ""
    try:
        bits = float(given)
    except ValueError:
        bits = -1.0
    if isinstance(given, bool) or not 0 < bits <= 64:
        legal = f"{', '.join(DTYPES)}, or bits per parameter such as 4.5"
        raise QuantKVError(f"weights-dtype {given!r}; legal: {legal}")
    return f"{bits:g} bits", -int(-shape.parameters * bits // 8), ""


def _stored_weights(shape: ModelShape, config: PreTrainedConfig) -> tuple[str, int, str]:
    method, dtype, unpacked = describe_precision(config), _name(shape.dtype), shape.unpacked_nbytes
    if quantization_of(config) is None:
        return dtype, unpacked, ""
    if shape.stored_nbytes is None:
        note = f"stored as {method}, of whose bits nothing is known here: the weights are counted in {dtype}"
        return dtype, unpacked, f"{note}; --weights-dtype takes bits per parameter"
    note = f"the weights are counted as stored ({method}); where transformers unpacks them they take "
    note += f"{both_sizes(unpacked)} (--weights-dtype {dtype})"
    bits = 8 * shape.stored_nbytes / shape.parameters
    return f"{method}, {bits:.2f} bits per parameter", shape.stored_nbytes, note


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(given: str | int) -> int:
    found = parse_size(given) if isinstance(given, str) else given
    return _count("a size in bytes", found, 0, MOST_BYTES)


def _count(name: str, value: int, least: int = 1, most: int = FAR) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise QuantKVError(f"{name} must be an integer of at least {least} and at most {most}, not {value!r}")
    return value
