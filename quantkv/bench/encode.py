"""How long packing takes: a prefill, one flush chunk (one token of raw floats), by the native engine and by
the PyTorch codec. Timed is `PageStore.append`, keys and values apart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantkv.bench.machine import Probe, instruction_set
from quantkv.bench.report import Report, Row, faster, make_report, timed_row
from quantkv.bench.rounds import Arm, Progress, quiet, refused, take_turns
from quantkv.bench.settings import EncodeSettings
from quantkv.codecs import Place
from quantkv.codecs.place import Which
from quantkv.engines import Engine, engine_for
from quantkv.engines.choosing import REFERENCE
from quantkv.spec.specs import CacheSpec, TensorSpec, parse_spec
from quantkv.store.pages import PageStore
from quantkv.store.tensor import ENCODE_TOKENS

CHUNKS_PER_SAMPLE = 16
"""One chunk takes microseconds: so many in a row make a sample, as a long generation would flush them."""


def bench_encode(settings: EncodeSettings, progress: Progress = quiet) -> Report:
    """Time every format, tensor and case with both encoders."""
    settings.check()
    specs = {text: parse_spec(text) for text in settings.formats}
    with instruction_set(settings.isa), refused(f"packing {settings.tokens} tokens"):
        probe = Probe([settings.threads])
        arms = [arm for text, spec in specs.items() for arm in _format_arms(text, spec, settings)]
        take_turns(arms, settings, progress)
        named = {arm.name: arm for arm in arms}
        rows = [_row(arm, named) for arm in arms]
        slow = {f"{row['format']} {row['tensor']}" for row in rows if row["no_native"]}
        flags = [f"{name} has no native encoder" for name in sorted(slow)]
        return make_report("encode", settings, probe, rows, flags)


def _format_arms(text: str, spec: CacheSpec, settings: EncodeSettings) -> Iterator[Arm]:
    for which, tensor, *_ in spec.halves:
        whole = max(1, settings.tokens // tensor.flush) * tensor.flush
        chunk = "raw token" if tensor.is_raw else "flush chunk"
        for case, tokens, runs in (("prefill", whole, 1), (chunk, tensor.flush, CHUNKS_PER_SAMPLE)):
            about = {"format": text, "tensor": which, "case": case, "tokens": tokens}
            yield from _case_arms(about, tensor, settings, runs)


def _case_arms(
    about: dict[str, Any], tensor: TensorSpec, settings: EncodeSettings, runs: int
) -> Iterator[Arm]:
    """The same append by both encoders, or by PyTorch's alone where there is no native one."""
    noise, tokens = torch.Generator().manual_seed(settings.seed), about["tokens"]
    x = torch.randn(1, settings.heads, tokens, settings.head_dim, generator=noise)
    span = -(-ENCODE_TOKENS // tensor.flush) * tensor.flush
    native, plain = (new_store(tensor, about["tensor"], settings, engine) for engine in (None, REFERENCE))
    no_native, layout = type(native.engine) is type(REFERENCE), plain.layout
    for encoder, store in (("torch", plain),) if no_native else (("native", native), ("torch", plain)):
        yield Arm(
            f"{about['format']} {about['tensor']} {about['case']} {encoder}",
            partial(append, store, x, span),
            threads=settings.threads,
            touched=x.nbytes + tokens * layout.record_bytes // layout.page_tokens,
            multiply_adds=x.numel(),
            about=about | {"encoder": encoder, "no_native": no_native},
            finish=partial(store.truncate, 0, 0),  # the next run fills the same pages
            runs_per_sample=runs,
        )


def new_store(
    tensor: TensorSpec, which: Which, settings: EncodeSettings, engine: Engine | None = None
) -> PageStore:
    """An empty store of one row of keys or values, served by an engine or, by default, as a cache's is."""
    cpu, stored = torch.device("cpu"), tensor.at(Place(which, settings.heads, settings.head_dim))
    return PageStore(stored, engine or engine_for(stored, cpu)[0], 1, cpu)


def append(store: PageStore, x: Tensor, span: int) -> None:
    """Pack `x` `[1, H, T, D]` as a layer does, so many tokens at a time."""
    for part in x.split(span, 2):
        store.append([0], part)


def _row(arm: Arm, named: dict[str, Arm]) -> Row:
    """The native encoder's says how many times faster than PyTorch's it is."""
    native = arm.about["encoder"] == "native"
    other = named[f"{arm.name.removesuffix('native')}torch"] if native else None
    return timed_row(arm) | {"faster_than_torch": faster(arm, other)}
