"""How long packing takes: a prefill, one flush chunk (one token of raw floats), by the native engine and by
the PyTorch codec. Timed is `PageStore.append`, keys and values apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantkv.bench.machine import MachineLimits, Probe, instruction_set
from quantkv.bench.report import make_report, parse_formats
from quantkv.bench.rounds import Arm, Progress, faster, quiet, refused, take_turns, timed_row
from quantkv.bench.settings import EncodeSettings
from quantkv.spec.specs import CacheSpec, TensorSpec
from quantkv.store import KEY_LANES, VALUE_LANES, page_layout
from quantkv.store.pages import PageStore
from quantkv.store.tensor import ENCODE_TOKENS

CHUNKS_PER_SAMPLE = 16
"""One chunk takes microseconds: so many in a row make a sample, as a long generation would flush them."""


@dataclass(frozen=True)
class Case:
    """What is packed in one append of a format."""

    format: str
    tensor: str
    case: str
    tokens: int


@dataclass(kw_only=True)
class PackingArm(Arm):
    """A case by one encoder."""

    case: Case
    encoder: str
    no_native: bool

    def about(self) -> dict[str, Any]:
        return asdict(self.case) | {"encoder": self.encoder, "no_native": self.no_native}


def bench_encode(settings: EncodeSettings, progress: Progress = quiet) -> dict[str, Any]:
    """Time every format, tensor and case with both encoders."""
    settings.check()
    specs = parse_formats(settings.formats)
    with instruction_set(settings.isa), refused(f"packing {settings.tokens} tokens"):
        probe = Probe([settings.threads])
        arms = [arm for text, spec in specs.items() for arm in _format_arms(text, spec, settings)]
        take_turns(arms, settings.rounds, seed=settings.seed, progress=progress)
        limits = probe.limits()
        slow = {f"{arm.case.format} {arm.case.tensor}" for arm in arms if arm.no_native}
        flags = [f"{name} has no native encoder" for name in sorted(slow)]
        return make_report("encode", settings, probe, limits, _rows(arms, limits), flags)


def _format_arms(text: str, spec: CacheSpec, settings: EncodeSettings) -> Iterator[PackingArm]:
    for which, tensor in (("key", spec.key), ("value", spec.value)):
        whole = max(1, settings.tokens // tensor.flush) * tensor.flush
        yield from _case_arms(Case(text, which, "prefill", whole), tensor, settings)
        chunk = Case(text, which, "raw token" if tensor.is_raw else "flush chunk", tensor.flush)
        yield from _case_arms(chunk, tensor, settings, runs_per_sample=CHUNKS_PER_SAMPLE)


def _case_arms(
    case: Case, tensor: TensorSpec, settings: EncodeSettings, runs_per_sample: int = 1
) -> Iterator[PackingArm]:
    """The same append by both encoders, or by PyTorch's alone where there is no native one."""
    noise = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(1, settings.heads, case.tokens, settings.head_dim, generator=noise)
    span = -(-ENCODE_TOKENS // tensor.flush) * tensor.flush
    native, plain = (new_store(tensor, case.tensor, settings) for _ in range(2))
    no_native, layout = native.format is None, plain.layout
    plain.format = None
    for encoder, store in (("torch", plain),) if no_native else (("native", native), ("torch", plain)):
        yield PackingArm(
            f"{case.format} {case.tensor} {case.case} {encoder}",
            partial(append, store, x, span),
            threads=settings.threads,
            touched=x.nbytes + case.tokens * layout.record_bytes // layout.page_tokens,
            multiply_adds=x.numel(),
            finish=partial(_undo, store),
            runs_per_sample=runs_per_sample,
            case=case,
            encoder=encoder,
            no_native=no_native,
        )


def new_store(tensor: TensorSpec, which: str, settings: EncodeSettings) -> PageStore:
    """An empty store of one row of keys or values."""
    codec, lanes = tensor.build(), KEY_LANES if which == "key" else VALUE_LANES
    layout = page_layout(codec, settings.heads, settings.head_dim, torch.float32, lanes)
    return PageStore(codec, layout, 1, torch.device("cpu"))


def append(store: PageStore, x: Tensor, span: int) -> None:
    """Pack `x` `[1, H, T, D]` as a layer does, so many tokens at a time."""
    for part in x.split(span, 2):
        store.append([0], part)


def _undo(store: PageStore) -> None:
    """Give the pages back, so that the next run fills the same ones."""
    store.truncate(0, 0)


def _rows(arms: Sequence[PackingArm], limits: MachineLimits) -> list[dict[str, Any]]:
    """A row per arm; the native one says how many times faster than PyTorch's it is."""
    by_torch = {arm.case: arm for arm in arms if arm.encoder == "torch"}
    rows = []
    for arm in arms:
        other = by_torch[arm.case] if arm.encoder == "native" else None
        rows.append(timed_row(arm, limits) | {"faster_than_torch": faster(arm, other)})
    return rows
