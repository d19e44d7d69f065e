"""Which tokens each query of a call finds packed: a function of lengths alone.

Positions are counted over the whole row, padding included. All tensors lie on the CPU; `[1]` stands for rows
that agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from quantkv.cache.padding import counted_padding
from quantkv.errors import QuantKVError
from quantkv.policy import Window

ALL_BUT_LAST = "all_but_last"
PREFILL_READS = ("exact", "final")
Lengths = Sequence[int] | Tensor
Prefill = int | Lengths | str


@dataclass(frozen=True, slots=True)
class Schedule:
    """How rows came into the cache before the rest was decoded token by token.

    `calls` are sizes of prompt calls that all rows share. Without them `prefill` is the size of the first
    call, `[1]` or one per row `[B]`, and None leaves the last real token of each row to decoding. `final`:
    the first call attends to what the store ends up holding. `count_from`, `[1]` or `[B]`: the first
    position whose reads are counted, where that is not the first one decoded.
    """

    prefill: Tensor | None
    calls: tuple[int, ...] = ()
    final: bool = False
    count_from: Tensor | None = None

    @classmethod
    def read(cls, prefill: Prefill, calls: Lengths | None, prefill_reads: str) -> Schedule:
        """From the arguments of `simulate`; QuantKVError for what is no length and for contradictions."""
        final = prefill_reads == "final"
        if prefill_reads not in PREFILL_READS:
            raise QuantKVError(f"prefill_reads {prefill_reads!r}; legal: {', '.join(PREFILL_READS)}")
        if calls is None:
            first = _prefill(prefill)
            if final and (not isinstance(prefill, int) or prefill == 0):
                raise QuantKVError("prefill_reads='final' needs a prefill of one length for all rows")
            return cls(first, (), final)
        if not isinstance(prefill, int) or prefill:
            raise QuantKVError("give prefill or calls, not both")
        sizes = tuple(read_lengths("calls", calls, 1).tolist())
        if final and not sizes:
            raise QuantKVError("prefill_reads='final' needs a prefill")
        return cls(torch.tensor([sum(sizes[:1])]), sizes, final)

    def first_calls(self, ends: Tensor) -> Tensor:
        """Size of each row's first call, `[1]` or `[B]`, where real tokens end at `ends` `[B]`."""
        return (ends - 1).clamp_min(0) if self.prefill is None else self.prefill

    def cached(self, positions: Tensor, first_calls: Tensor) -> Tensor:
        """How many tokens were cached when the call that holds each of `positions` `[n]` began: `[1|B, n]`.
        What `final` lets the first call read counts as cached."""
        starts = torch.tensor([0, *self.calls]).cumsum(0)
        call = torch.searchsorted(starts, positions, right=True) - 1
        before = torch.where(positions < starts[-1], starts[call], positions)
        first = first_calls[:, None]
        return torch.where(positions < first, first if self.final else 0, before)

    def last(self, positions: Tensor, first_calls: Tensor) -> Tensor:
        """The last position of the call that holds each of `positions` `[n]`: `[1|B, n]`."""
        stops = torch.tensor([0, *self.calls]).cumsum(0)
        call = torch.searchsorted(stops, positions, right=True).clamp_max(len(stops) - 1)
        after = torch.where(positions < stops[-1], stops[call] - 1, positions)
        first = first_calls[:, None]
        return torch.where(positions < first, first - 1, after)


def _prefill(prefill: Prefill) -> Tensor | None:
    if isinstance(prefill, str):
        if prefill != ALL_BUT_LAST:
            raise QuantKVError(f"prefill {prefill!r}; legal: a length, one per row, {ALL_BUT_LAST!r}")
        return None
    lengths = read_lengths("prefill", [prefill] if isinstance(prefill, int) else prefill, 0)
    if not len(lengths):
        raise QuantKVError("prefill has no rows; legal: a length, one per row, 'all_but_last'")
    return lengths


def chunk_size(name: str) -> int:
    """N of the prefill `chunk:N`; 0 where it is none."""
    word, _, size = name.partition(":")
    return int(size) if word == "chunk" and size.isdecimal() else 0


def read_lengths(name: str, given: Lengths, least: int) -> Tensor:
    """Whole numbers from `least` on as a CPU tensor `[N]`; QuantKVError otherwise."""
    try:
        numbers = torch.as_tensor(given).cpu()
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0, 0)
    whole = not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
    if numbers.dim() != 1 or (numbers.numel() and (not whole or int(numbers.min()) < least)):
        raise QuantKVError(f"{name} {given!r}; legal: whole numbers of tokens from {least} on")
    return numbers.long()


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Where the real tokens of each row begin and end, `[B]` each."""

    begins: Tensor
    ends: Tensor

    @classmethod
    def of_mask(cls, mask: Tensor) -> BatchRows:
        """From a 2-D mask with zeros before and after the real tokens; a row without any ends at 0."""
        real = mask.bool().cpu()
        after = (real.flip(-1).cumsum(-1) == 0).sum(-1)
        return cls((real.cumsum(-1) == 0).sum(-1), real.shape[-1] - after)

    @classmethod
    def of_positions(cls, positions: Any, count: int, length: int) -> BatchRows | None:
        """As a cache reads them: None where they show no padding."""
        pads = counted_padding(positions, count, length)
        return None if pads is None else cls(torch.tensor(pads), torch.full((count,), length))

    @classmethod
    def unpadded(cls, count: int, length: int) -> BatchRows:
        return cls(torch.zeros(count, dtype=torch.long), torch.full((count,), length))

    def __len__(self) -> int:
        return len(self.begins)


@dataclass
class Call:
    """One forward call for all its layers: the queries `[offset, stop)` of every row.

    What a window decides is computed once and kept for the layers that share it.
    """

    schedule: Schedule
    rows: BatchRows
    offset: int
    stop: int
    first_calls: Tensor = field(init=False)
    cached: Tensor = field(init=False)
    _bounds: dict[Window, Tensor] = field(default_factory=dict)
    _counts: dict[tuple[int, tuple[Window, ...]], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check()
        self.first_calls = self.schedule.first_calls(self.rows.ends)
        self.cached = self.schedule.cached(self.positions, self.first_calls)

    def _check(self) -> None:
        prefill = self.schedule.prefill
        for name, given in (("prefill", prefill), ("count_from", self.schedule.count_from)):
            if given is not None and len(given) not in (1, len(self.rows)):
                raise QuantKVError(
                    f"{name} names {len(given)} rows, the model was called with {len(self.rows)}"
                )
        longest = max(sum(self.schedule.calls), 0 if prefill is None else int(prefill.max()))
        if longest > self.stop:
            raise QuantKVError(f"a prefill of {longest} tokens is longer than the row of {self.stop}")

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.offset, self.stop)

    def last(self) -> tuple[Tensor, Tensor]:
        """For each query the column of this call's queries with which its own call ends, as far as this one
        goes, and whether it is a real token: `[B, queries]` each."""
        columns = self.schedule.last(self.positions, self.first_calls).clamp_max(self.stop - 1) - self.offset
        begins, ends = self.rows.begins[:, None], self.rows.ends[:, None]
        real = (self.positions >= begins) & (self.positions < ends)
        return columns.expand_as(real), real

    @property
    def pads(self) -> Tensor:
        """Leading padding: `[1]` where all rows agree, else `[B]`."""
        begins = self.rows.begins
        return begins[:1] if bool((begins == begins[0]).all()) else begins

    def bounds(self, window: Window) -> Tensor:
        """For each query the first position after the sinks that is not packed: `[1|B, queries]`."""
        if window not in self._bounds:
            pads = self.pads[:, None]
            self._bounds[window] = pads + window.boundary(self.cached - pads)
        return self._bounds[window]

    def exact_groups(self) -> list[tuple[slice, int]]:
        """Neighbouring rows and how many of their queries, from the first on, read nothing but exact
        tokens because their call was the first."""
        exact = [0] if self.schedule.final else (self.first_calls - self.offset).clamp_min(0).tolist()
        if len(exact) == 1:
            return [(slice(0, len(self.rows)), min(exact[0], self.stop - self.offset))]
        groups, start = [], 0
        for count, same in groupby(exact):
            stop = start + len(list(same))
            groups.append((slice(start, stop), min(count, self.stop - self.offset)))
            start = stop
        return groups

    def _count_from(self) -> Tensor:
        """The first position of each row whose reads are counted: `[1|B]`."""
        if self.schedule.count_from is not None:
            return self.schedule.count_from
        return self.first_calls.clamp_min(sum(self.schedule.calls))

    def counts(self, span: int, windows: tuple[Window, ...]) -> Tensor:
        """Attended (query, key) pairs of decoded real tokens, and how many of them were packed, keys and
        values apart and added up: `[2, B]` in float64. Layers attend to the last `span` tokens; without
        windows nothing is packed."""
        key = (span, windows)
        if key not in self._counts:
            positions, begins = self.positions, self.rows.begins[:, None]
            counted = (positions >= self._count_from()[:, None]) & (positions < self.rows.ends[:, None])
            first = torch.maximum(begins, positions + 1 - span)
            pairs = 2 * (positions + 1 - first)
            packed = torch.zeros_like(pairs)
            for window in windows:
                start = torch.maximum(first, begins + window.sinks)
                stop = torch.minimum(self.bounds(window), positions + 1)
                packed = packed + (stop - start).clamp_min(0)
            both = torch.stack([pairs.clamp_min(0), packed])
            self._counts[key] = (both * counted).sum(-1).double()
        return self._counts[key]
