"""One decode step of one layer: our formats read from a real layer, beside what else could be done.

The arms: SDPA over exact keys and values (float32 grouped, as models call it, is the baseline; folded, which
reads keys and values once; bfloat16; heads repeated, as in models without grouped SDPA), each format read
from its pages, and each format decoded whole and then given to SDPA, as quantized caches do whose `update`
returns the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quantkv.attention import attend
from quantkv.bench.machine import MachineLimits, Probe, instruction_set
from quantkv.bench.report import make_report, parse_formats
from quantkv.bench.rounds import Arm, Progress, faster, quiet, refused, take_turns, timed_row
from quantkv.bench.settings import AttentionSettings
from quantkv.cache.layer import QuantizedLayer
from quantkv.spec.specs import CacheSpec
from quantkv.store import View

BASELINE, FOLDED = "sdpa fp32 grouped", "sdpa fp32 folded"
SMALL_TOKENS = 320
"""Before it is timed each arm runs over so few tokens: its code and its threads are then awake, as between
the layers of a model, while its keys and values are in no cache of the processor."""
MAX_DIFFERENCE = 1e-3
"""An arm that differs by more from attention over the same decoded numbers is flagged."""


@dataclass(frozen=True)
class Inputs:
    """A query `[1, Hq, 1, D]` and keys and values `[1, H, T, D]`, float32."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def exact_bytes(self) -> int:
        return self.key.nbytes + self.value.nbytes

    @property
    def multiply_adds(self) -> int:
        """Scores and output: two for each query head, token and channel."""
        return 2 * self.query.shape[1] * self.key.shape[2] * self.key.shape[3]

    @property
    def ratio(self) -> int:
        return self.query.shape[1] // self.key.shape[1]


@dataclass
class LayerArm(Arm):
    """One way to read the layer; of `kind` sdpa, quantkv (from pages) or decode."""

    kind: str = "sdpa"
    format: str | None = None
    engine: str = "sdpa"
    tokens: int = 0

    def about(self) -> dict[str, Any]:
        return {"kind": self.kind, "format": self.format, "engine": self.engine, "tokens": self.tokens}


def bench_attention(settings: AttentionSettings, progress: Progress = quiet) -> dict[str, Any]:
    """Time every arm at every token count; the report as JSON can hold it."""
    settings.check()
    specs = parse_formats(settings.formats)
    flags: list[str] = []
    with instruction_set(settings.isa):
        probe = Probe(settings.thread_counts)
        measured = [_arms_at(n, specs, settings, probe, flags, progress) for n in settings.tokens]
        limits = probe.limits()
        rows = [row for arms in measured for row in _rows(arms, limits, settings, flags)]
        return make_report("attention", settings, probe, limits, rows, flags)


def _arms_at(
    tokens: int,
    specs: dict[str, CacheSpec],
    settings: AttentionSettings,
    probe: Probe,
    flags: list[str],
    progress: Progress,
) -> list[LayerArm]:
    """The arms of one token count, run; what they kept alive is let go."""
    with refused(f"attention over {tokens} tokens"):
        arms, small = (_arms_over(n, specs, settings) for n in (tokens, min(tokens, SMALL_TOKENS)))
        for arm, twin in zip(arms, small, strict=True):
            arm.tokens, arm.prepare = tokens, twin.run
        arms = _affordable(arms, flags)
        take_turns(
            arms,
            settings.rounds,
            seed=settings.seed,
            between=probe.evict if settings.cold else _rest,
            progress=lambda what: progress(f"{tokens} tokens, {what}"),
        )
    for arm in arms:
        arm.run = arm.prepare = _rest
    return arms


def _arms_over(tokens: int, specs: dict[str, CacheSpec], settings: AttentionSettings) -> list[LayerArm]:
    inputs = random_inputs(settings, tokens)
    arms = exact_arms(inputs, settings.threads)
    for text, spec in specs.items():
        arms += format_arms(text, spec, inputs, settings)
    return arms


def _rest() -> None:
    """Nothing between two runs."""


def random_inputs(settings: AttentionSettings, tokens: int) -> Inputs:
    noise = torch.Generator().manual_seed(settings.seed)
    kv_shape = (1, settings.heads, tokens, settings.head_dim)
    query = torch.randn(1, settings.query_heads, 1, settings.head_dim, generator=noise)
    return Inputs(query, torch.randn(kv_shape, generator=noise), torch.randn(kv_shape, generator=noise))


def exact_arms(inputs: Inputs, threads: int) -> list[LayerArm]:
    """SDPA over exact keys and values. Repeating heads writes the wide copy and reads it again."""
    half = Inputs(*(x.bfloat16() for x in (inputs.query, inputs.key, inputs.value)))
    exact, wide = inputs.exact_bytes, inputs.ratio * inputs.exact_bytes
    arm = partial(LayerArm, threads=threads, multiply_adds=inputs.multiply_adds)
    return [
        arm(BASELINE, partial(grouped, inputs), touched=exact),
        arm(FOLDED, partial(folded, inputs), touched=exact),
        arm("sdpa bf16 grouped", partial(grouped, half), touched=half.exact_bytes),
        arm("sdpa bf16 folded", partial(folded, half), touched=half.exact_bytes),
        arm("sdpa fp32 repeated", partial(repeated, inputs), touched=exact + 2 * wide, scratch=wide),
    ]


def format_arms(text: str, spec: CacheSpec, inputs: Inputs, settings: AttentionSettings) -> list[LayerArm]:
    """A format read from its pages, by one or two thread counts, and decoded whole before SDPA.

    Decoding writes float32 keys and values, joining them with the exact tokens reads and writes them once
    more, and SDPA reads them.
    """
    layer = filled_layer(spec, inputs)
    key, value = (store.view() for store in layer.stores)
    held = touched_bytes(key) + touched_bytes(value)
    arm = partial(LayerArm, multiply_adds=inputs.multiply_adds, format=text)
    read, decode = (partial(run, inputs.query, key, value) for run in (attend, decoded))
    whole = arm(f"decode {text}, sdpa", decode, threads=settings.threads, kind="decode")
    whole.engine, whole.scratch = f"{layer.engine}, sdpa", 2 * inputs.exact_bytes
    whole.touched = held + 4 * inputs.exact_bytes
    packed = partial(arm, text, read, touched=held, kind="quantkv", engine=layer.engine)
    return [*(packed(threads=count) for count in settings.thread_counts), whole]


def filled_layer(spec: CacheSpec, inputs: Inputs) -> QuantizedLayer:
    """A layer that holds the inputs."""
    spec.check_layers(1)
    layer = QuantizedLayer(spec.for_layer(0, 1))
    layer.update(inputs.key, inputs.value)
    return layer


def touched_bytes(view: View) -> int:
    """Bytes of pages and exact tokens that one query reads of a view without padding."""
    layout, (rows, heads, stop, head_dim) = view.pages.layout, view.shape
    packed = sum(view.visible)
    exact = rows * stop - packed
    token = heads * head_dim * view.dtype.itemsize
    return packed * layout.record_bytes // layout.page_tokens + exact * token


def grouped(inputs: Inputs) -> Tensor:
    """SDPA whose kernel lets query heads share a KV head."""
    return scaled_dot_product_attention(inputs.query, inputs.key, inputs.value, enable_gqa=True)


def folded(inputs: Inputs) -> Tensor:
    """SDPA whose query rows are the query heads of one KV head, so that keys and values are read once:
    much the fastest in torch at long contexts, for one token without a mask."""
    rows = inputs.query.unflatten(1, (-1, inputs.ratio)).squeeze(-2)
    return scaled_dot_product_attention(rows, inputs.key, inputs.value).flatten(1, 2).unsqueeze(-2)


def repeated(inputs: Inputs) -> Tensor:
    """SDPA over keys and values copied to every query head."""
    key, value = (x.repeat_interleave(inputs.ratio, 1) for x in (inputs.key, inputs.value))
    return scaled_dot_product_attention(inputs.query, key, value)


def decoded(query: Tensor, key: View, value: View) -> Tensor:
    """The whole history decoded to float32, then SDPA."""
    return grouped(Inputs(query, key.read(0, key.stop), value.read(0, value.stop)))


def _affordable(arms: Sequence[LayerArm], flags: list[str]) -> list[LayerArm]:
    """Leave out, and say so, what would need more memory than is free."""
    free = psutil.virtual_memory().available
    for arm in arms:
        if arm.scratch > free:
            flags.append(f"{arm.name} left out: it needs {arm.scratch / 2**30:.1f} GiB of {free / 2**30:.1f}")
    return [arm for arm in arms if arm.scratch <= free]


def _rows(
    arms: Sequence[LayerArm], limits: MachineLimits, settings: AttentionSettings, flags: list[str]
) -> list[dict[str, Any]]:
    named = {arm.name: arm for arm in arms}
    base, rows = named[BASELINE], []
    decodes = {arm.format: arm for arm in arms if arm.kind == "decode"}
    wider = {arm.format: arm for arm in arms if arm.threads != settings.threads}
    for arm in arms:
        decode = decodes.get(arm.format) if arm.kind == "quantkv" else None
        wide = wider.get(arm.format) if arm.kind == "quantkv" and arm.threads == settings.threads else None
        row = timed_row(arm, limits)
        row["faster_than_baseline"] = faster(arm, base)
        row["faster_than_folded"] = faster(arm, named[FOLDED])
        row["faster_than_decode"] = faster(arm, decode)
        row["faster_with_more_threads"] = faster(wide, arm) if wide else None
        row |= _difference(arm, decode or base)
        rows.append(row)
        flags += _flags(arm, row)
    return rows


def _difference(arm: LayerArm, other: LayerArm) -> dict[str, Any]:
    """How far the output is from another arm's, relative to its largest number. For a decoded format that is
    the price of quantization; for a format read from pages, rounding of the same numbers."""
    reference = other.output.float()
    difference = float((arm.output.float() - reference).abs().max() / reference.abs().max())
    return {"difference": difference, "difference_to": other.name}


def _flags(arm: LayerArm, row: dict[str, Any]) -> Iterator[str]:
    if arm.kind != "quantkv":
        return
    difference = row["difference"]
    if row["faster_than_decode"] is not None and difference > MAX_DIFFERENCE:
        yield f"{arm.name} differs from the same numbers decoded by {difference:.1e}"
    if arm.engine == "reference":
        yield f"{arm.name} ran on the reference engine: no speed claim"
