"""One decode step of one layer: our formats read from a real layer, beside what else could be done.

The arms: SDPA over exact keys and values (float32 grouped, as models call it, is the baseline; folded, which
reads keys and values once; bfloat16; heads repeated, as in models without grouped SDPA), each format read
from its pages, and each format decoded whole and then given to SDPA, as quantized caches do whose `update`
returns the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import psutil
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quantkv.bench.machine import Probe, instruction_set
from quantkv.bench.report import Report, Row, faster, make_report, timed_row
from quantkv.bench.rounds import Arm, Progress, quiet, refused, rest, take_turns
from quantkv.bench.settings import AttentionSettings
from quantkv.cache.layer import NOWHERE, QuantizedLayer
from quantkv.codecs import Place, Rope
from quantkv.codecs.place import Which
from quantkv.engines import attend
from quantkv.spec.specs import CacheSpec, parse_spec
from quantkv.store import View

BASELINE, FOLDED, DECODED = "sdpa fp32 grouped", "sdpa fp32 folded", "decode {}, sdpa"
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


def bench_attention(settings: AttentionSettings, progress: Progress = quiet) -> Report:
    """Time every arm at every token count; the report as JSON can hold it."""
    settings.check()
    specs = {text: parse_spec(text) for text in settings.formats}
    rows: list[Row] = []
    flags: list[str] = []
    with instruction_set(settings.isa):
        probe = Probe(settings.thread_counts)
        for tokens in settings.tokens:
            with refused(f"attention over {tokens} tokens"):
                rows += _rows_at(tokens, specs, settings, probe, flags, progress)
        flags += chain.from_iterable(map(_flags, rows))
        return make_report("attention", settings, probe, rows, flags)


def _rows_at(
    tokens: int,
    specs: dict[str, CacheSpec],
    settings: AttentionSettings,
    probe: Probe,
    flags: list[str],
    progress: Progress,
) -> list[Row]:
    """The arms of one token count, run; what they keep alive is let go with them."""
    arms, small = (_arms_over(n, specs, settings) for n in (tokens, min(tokens, SMALL_TOKENS)))
    for arm, twin in zip(arms, small, strict=True):
        arm.about["tokens"], arm.prepare = tokens, twin.run
    arms = _affordable(arms, flags)
    between = partial(probe.read, 1) if settings.cold else rest
    take_turns(arms, settings, lambda what: progress(f"{tokens} tokens, {what}"), between)
    return _rows(arms, settings.threads)


def _arms_over(tokens: int, specs: dict[str, CacheSpec], settings: AttentionSettings) -> list[Arm]:
    inputs = random_inputs(settings, tokens)
    ours = (format_arms(text, spec, inputs, settings) for text, spec in specs.items())
    return [*exact_arms(inputs, settings.threads), *chain.from_iterable(ours)]


def random_inputs(settings: AttentionSettings, tokens: int) -> Inputs:
    noise = torch.Generator().manual_seed(settings.seed)
    kv_shape = (1, settings.heads, tokens, settings.head_dim)
    query = torch.randn(1, settings.query_heads, 1, settings.head_dim, generator=noise)
    return Inputs(query, torch.randn(kv_shape, generator=noise), torch.randn(kv_shape, generator=noise))


def exact_arms(inputs: Inputs, threads: int) -> list[Arm]:
    """SDPA over exact keys and values. Repeating heads writes the wide copy and reads it again."""
    half = Inputs(*(x.bfloat16() for x in (inputs.query, inputs.key, inputs.value)))
    exact, wide = inputs.exact_bytes, inputs.ratio * inputs.exact_bytes

    def arm(name: str, run: Callable[[Inputs], Tensor], of: Inputs, touched: int, scratch: int = 0) -> Arm:
        about = {"kind": "sdpa", "format": None, "engine": "sdpa"}
        return Arm(name, partial(run, of), threads, touched, inputs.multiply_adds, scratch, about)

    return [
        arm(BASELINE, grouped, inputs, exact),
        arm(FOLDED, folded, inputs, exact),
        arm("sdpa bf16 grouped", grouped, half, half.exact_bytes),
        arm("sdpa bf16 folded", folded, half, half.exact_bytes),
        arm("sdpa fp32 repeated", repeated, inputs, exact + 2 * wide, wide),
    ]


def format_arms(text: str, spec: CacheSpec, inputs: Inputs, settings: AttentionSettings) -> list[Arm]:
    """A format read from its pages, by one or two thread counts, and decoded whole before SDPA.

    Decoding writes float32 keys and values, joining them with the exact tokens reads and writes them once
    more, and SDPA reads them.
    """
    spec.check_layers(1)
    layer = QuantizedLayer(spec.for_layer(0, 1), places=_places(settings.head_dim))
    layer.update(inputs.key, inputs.value)
    key, value = (store.view() for store in layer.stores)
    held, exact = touched_bytes(key) + touched_bytes(value), inputs.exact_bytes
    read, decode = (partial(run, inputs.query, key, value) for run in (attend, decoded))
    packed = {"kind": "quantkv", "format": text, "engine": layer.engine}
    whole = {"kind": "decode", "format": text, "engine": f"{layer.engine}, sdpa"}
    work = inputs.multiply_adds
    return [
        *(Arm(text, read, count, held, work, about=dict(packed)) for count in settings.thread_counts),
        Arm(DECODED.format(text), decode, settings.threads, held + 4 * exact, work, 2 * exact, whole),
    ]


def _places(head_dim: int) -> dict[Which, Place]:
    """Keys that turn as those of Llama do, for formats that turn them back."""
    frequencies = tuple(10000.0 ** (-2 * pair / head_dim) for pair in range(head_dim // 2))
    key = replace(NOWHERE["key"], head_dim=head_dim, rope=Rope(frequencies))
    return {"key": key, "value": replace(NOWHERE["value"], head_dim=head_dim)}


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


def _affordable(arms: Sequence[Arm], flags: list[str]) -> list[Arm]:
    """Leave out, and say so, what would need more memory than is free."""
    free = psutil.virtual_memory().available
    for arm in arms:
        if arm.scratch > free:
            flags.append(f"{arm.name} left out: it needs {arm.scratch / 2**30:.1f} GiB of {free / 2**30:.1f}")
    return [arm for arm in arms if arm.scratch <= free]


def _rows(arms: Sequence[Arm], threads: int) -> list[Row]:
    named = {arm.name: arm for arm in arms}
    wider = {arm.name: arm for arm in arms if arm.threads != threads}
    rows = []
    for arm in arms:
        decode = named.get(DECODED.format(arm.name))
        wide = wider.get(arm.name) if arm.threads == threads else None
        rows.append(
            timed_row(arm)
            | {
                "faster_than_baseline": faster(arm, named[BASELINE]),
                "faster_than_folded": faster(arm, named[FOLDED]),
                "faster_than_decode": faster(arm, decode),
                "faster_with_more_threads": faster(wide, arm) if wide else None,
            }
            | _difference(arm, decode or named[BASELINE])
        )
    return rows


def _difference(arm: Arm, other: Arm) -> Row:
    """How far the output is from another arm's, relative to its largest number. For a decoded format that is
    the price of quantization; for a format read from pages, rounding of the same numbers."""
    reference = other.output.float()
    difference = float((arm.output.float() - reference).abs().max() / reference.abs().max())
    return {"difference": difference, "difference_to": other.name}


def _flags(row: Row) -> Iterator[str]:
    name, difference = row["name"], row["difference"]
    if row["faster_than_decode"] is not None and difference > MAX_DIFFERENCE:
        yield f"{name} differs from the same numbers decoded by {difference:.1e}"
    if row["engine"] == "reference":
        yield f"{name} ran on the reference engine: no speed claim"
