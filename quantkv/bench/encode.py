"""How long packing takes: a prefill, one flush chunk (one token of raw floats), by the native engine and by
the PyTorch codec. Timed is `PageStore.append`, keys and values apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quantkv.bench.attention import FORMATS
from quantkv.bench.machine import MachineLimits, Probe, instruction_set
from quantkv.bench.report import make_report, parse_formats
from quantkv.bench.rounds import (
    Arm,
    Progress,
    check_counts,
    check_threads,
    quiet,
    ratios,
    refused,
    take_turns,
    timed_row,
)
from quantkv.spec.specs import CacheSpec
from quantkv.spec.tensors import TensorSpec
from quantkv.store import KEY_LANES, VALUE_LANES, page_layout
from quantkv.store.pages import PageStore
from quantkv.store.tensor import ENCODE_TOKENS

CHUNKS_PER_SAMPLE = 16
"""One chunk takes microseconds: so many in a row make a sample, as a long generation would flush them."""


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """Batch 1; `tokens` is the length of the prefill."""

    formats: tuple[str, ...] = FORMATS
    heads: int = 8
    head_dim: int = 128
    tokens: int = 8192
    threads: int = 1
    rounds: int = 11
    isa: str | None = None
    seed: int = 0

    def check(self) -> None:
        check_counts(heads=self.heads, head_dim=self.head_dim, tokens=self.tokens)
        check_counts(rounds=self.rounds)
        check_threads(self.threads)


def bench_encode(settings: EncodeSettings, progress: Progress = quiet) -> dict[str, Any]:
    """Time every format, tensor and case with both encoders."""
    settings.check()
    specs = parse_formats(settings.formats)
    with instruction_set(settings.isa), refused(f"packing {settings.tokens} tokens"):
        probe = Probe()
        before = probe.rates([settings.threads])
        arms = [arm for text, spec in specs.items() for arm in _format_arms(text, spec, settings)]
        take_turns(arms, settings.rounds, seed=settings.seed, progress=progress)
        limits = MachineLimits(before, probe.rates([settings.threads]), probe.method)
        slow = {f"{arm.about['format']} {arm.about['tensor']}" for arm in arms if arm.about["no_native"]}
        flags = [f"{name} has no native encoder" for name in sorted(slow)]
        return make_report("encode", settings, probe, limits, _rows(arms, limits), flags)


def _format_arms(text: str, spec: CacheSpec, settings: EncodeSettings) -> Iterator[Arm]:
    for which in ("key", "value"):
        tensor: TensorSpec = getattr(spec, which)
        whole = max(1, settings.tokens // tensor.flush) * tensor.flush
        cases = [("prefill", whole, 1), (chunk_name(tensor), tensor.flush, CHUNKS_PER_SAMPLE)]
        for case, tokens, runs in cases:
            yield from _case_arms((text, which, case), tensor, tokens, runs, settings)


def chunk_name(tensor: TensorSpec) -> str:
    return "raw token" if tensor.is_raw else "flush chunk"


def _case_arms(
    names: tuple[str, str, str], tensor: TensorSpec, tokens: int, runs: int, settings: EncodeSettings
) -> Iterator[Arm]:
    """The same append by both encoders, or by PyTorch's alone where there is no native one."""
    text, which, case = names
    noise = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(1, settings.heads, tokens, settings.head_dim, generator=noise)
    span = -(-ENCODE_TOKENS // tensor.flush) * tensor.flush
    stores = {"native": new_store(tensor, which, settings), "torch": new_store(tensor, which, settings)}
    no_native = stores["native"].format is None
    stores["torch"].format = None
    for encoder, store in stores.items():
        if encoder == "native" and no_native:
            continue
        layout = store.layout
        about = {"format": text, "tensor": which, "case": case, "tokens": tokens, "encoder": encoder}
        yield Arm(
            f"{text} {which} {case} {encoder}",
            partial(append, store, x, span),
            threads=settings.threads,
            touched=x.nbytes + tokens * layout.record_bytes // layout.page_tokens,
            multiply_adds=x.numel(),
            about=about | {"no_native": no_native},
            finish=partial(_undo, store),
            runs_per_sample=runs,
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


def _rows(arms: list[Arm], limits: MachineLimits) -> list[dict[str, Any]]:
    """A row per arm; the native one says how many times faster than PyTorch's it is."""
    torch_arms = {_case_of(arm): arm for arm in arms if arm.about["encoder"] == "torch"}
    rows = []
    for arm in arms:
        row = timed_row(arm, limits)
        native = arm.about["encoder"] == "native"
        other = torch_arms[_case_of(arm)]
        rows.append(row | {"faster_than_torch": ratios(other.seconds, arm.seconds) if native else None})
    return rows


def _case_of(arm: Arm) -> tuple[str, str, str]:
    return arm.about["format"], arm.about["tensor"], arm.about["case"]
