"""The native attention kernel on pages made by hand: every kind of code, sharing, shape and mask, in every
build, beside attention computed in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from guarded import GuardedPages
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packs import Pack, random_pages

from quantkv.engines.native import kernels

native = kernels()
if native is None:
    pytest.skip("the native engine is switched off or not built", allow_module_level=True)
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
SHARINGS = [(1, 0), (1, 8), (1, 16), (1, 32), (16, 1), (32, 1), (64, 1), (24, 1), (20, 0), (32, 0)]
HEAD_DIMS = [20, 32, 40, 64, 80, 96, 128, 256]
TOLERANCE = 2e-5
"""Of the largest value: float32 sums of scores within ±50."""


class Case:
    """One call: packed and exact tokens of each row, queries, and what attention over them should be."""

    def __init__(
        self,
        key: Pack,
        value: Pack,
        rng: np.random.Generator,
        rows: int = 1,
        ratio: int = 1,
        queries: int = 1,
        exact: torch.dtype = torch.float32,
    ) -> None:
        self.key, self.value, self.rng = key, value, rng
        self.rows, self.ratio, self.queries = rows, ratio, queries
        self.exact = exact
        self.sinks, self.ring_size = int(rng.integers(0, 6)), int(rng.integers(queries + 1, 90))
        self.stop = int(rng.integers(queries, 500))
        self.pads = [int(rng.integers(0, 1 + min(3, self.stop - queries))) for _ in range(rows)]
        self.sides = [self._side(pack) for pack in (key, value)]
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        heads = key.heads * ratio
        self.query = torch.randn(rows, heads, queries, key.head_dim, generator=generator)

    def _side(self, pack: Pack) -> dict[str, Any]:
        """Visible counts that leave no more exact tokens than the ring holds, and the tensors behind them."""
        visible = [
            int(self.rng.integers(max(0, real - self.ring_size), max(0, real) + 1))
            for real in (self.stop - pad - self.sinks for pad in self.pads)
        ]
        pages = [random_pages(pack, self.rng, -(-max(1, n) // pack.page_tokens)) for n in visible]
        shape = (self.rows, pack.heads)
        exact = [
            torch.from_numpy(self.rng.standard_normal((*shape, n, pack.head_dim))).to(self.exact)
            for n in (self.sinks, self.ring_size)
        ]
        kernel = native.Pages(pack.native(native))
        kernel.set([p.addresses for p in pages])
        return {"visible": visible, "pages": pages, "exact": exact, "kernel": kernel}

    def _tuple(self, side: dict[str, Any]) -> tuple[Any, ...]:
        sinks, ring = side["exact"]
        dtype = FLOATS.index(self.exact)
        return (
            side["visible"],
            dtype,
            sinks.data_ptr(),
            self.sinks,
            ring.data_ptr(),
            self.ring_size,
            0,
            0,
            (0, 0, 0),
        )

    def run(
        self,
        isa: str,
        *,
        mask: torch.Tensor | None = None,
        softcap: float = 0.0,
        threads: int = 1,
        sink_logits: torch.Tensor | None = None,
        causal: bool = False,
        start: int = 0,
    ) -> torch.Tensor:
        heads = self.key.heads * self.ratio
        out = torch.full((self.rows, self.queries, heads, self.value.head_dim), float("nan"))
        keys, values = ((side["kernel"], self._tuple(side)) for side in self.sides)
        native.attend(
            *keys, *values, (self.pads, start, self.stop),
            (self.query.data_ptr(), 0, self.query.stride()[:3], heads, self.queries),
            (self.key.head_dim**-0.5, softcap, causal, 0 if sink_logits is None else sink_logits.data_ptr()),
            None if mask is None else (mask.data_ptr(), mask.dtype == torch.bool, mask.stride()),
            out.data_ptr(), threads, isa,
        )  # fmt: skip
        return out.transpose(1, 2).double()

    def full(self, which: int) -> torch.Tensor:
        """All keys (0) or values (1) in float64, `[rows, heads, stop, D]`; padding is zeros."""
        side, pack = self.sides[which], (self.key, self.value)[which]
        out = torch.zeros(self.rows, pack.heads, self.stop, pack.head_dim, dtype=torch.float64)
        for row, pad in enumerate(self.pads):
            first = min(self.stop, pad + self.sinks)
            packed_end = first + side["visible"][row]
            out[row, :, pad:first] = side["exact"][0][row, :, : first - pad].double()
            out[row, :, first:packed_end] = torch.from_numpy(
                side["pages"][row].decoded[:, : packed_end - first]
            )
            for j in range(packed_end, self.stop):
                out[row, :, j] = side["exact"][1][row, :, j % self.ring_size].double()
        return out

    def expected(self, *, bias: torch.Tensor | None = None, softcap: float = 0.0,
                 sink_logits: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """Attention in float64; `bias` `[rows, Hq, queries, stop]` is added to the scores."""
        keys, values = (self.full(i).repeat_interleave(self.ratio, 1) for i in (0, 1))
        scores = self.query.double() @ keys.transpose(-1, -2) * self.key.head_dim**-0.5
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        if bias is not None:
            scores = scores + bias
        if sink_logits is not None:
            extra = sink_logits.double().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        unseen = (scores == float("-inf")).all(-1, keepdim=True)  # rows that see nothing come out as zeros
        return weights.masked_fill(unseen, 0.0) @ values

    def check(self, got: torch.Tensor, want: torch.Tensor, tolerance: float = TOLERANCE) -> None:
        assert (got - want).abs().max() <= tolerance * max(1.0, self.full(1).abs().max())


def _table(bits: int) -> tuple[float, ...]:
    return tuple(float(np.float32(x)) for x in np.random.default_rng(bits).standard_normal(2**bits))


@st.composite
def packs(draw: Any, keys: bool, heads: int = 2) -> Pack:
    head_dim = draw(st.sampled_from(HEAD_DIMS))
    code = draw(st.sampled_from(["affine", "affine", "affine", "table", "e4m3", "e5m2", "raw"]))
    bits = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8])) if code in ("affine", "table") else 8
    tokens, channels = draw(st.sampled_from([s for s in SHARINGS if not s[1] or head_dim % s[1] == 0]))
    page = {24: 192, 20: 320}.get(tokens, draw(st.sampled_from([64, 128])))
    has_scale = code != "raw" and (code != "table" or draw(st.booleans()))
    return Pack(
        keys=keys, heads=heads, head_dim=head_dim, page_tokens=page, code=code, bits=bits,
        share_tokens=tokens,
        share_channels=channels, value=draw(st.sampled_from(["float32", "float16"])), has_scale=has_scale,
        has_zero=draw(st.booleans()) and code == "affine", all_heads=draw(st.booleans()),
        meta=draw(st.sampled_from(["float16", "float32"])), table=_table(bits) if code == "table" else (),
    )  # fmt: skip


EACH_ISA = pytest.mark.parametrize("isa", native.usable_isas())
ANY_PACK = given(key=packs(keys=True), value=packs(keys=False), seed=st.integers(0, 2**31), data=st.data())
PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))


@EACH_ISA
@settings(PATIENT, max_examples=50)
@ANY_PACK
def test_any_pack_any_shape(isa: str, key: Pack, value: Pack, seed: int, data: Any) -> None:
    any_pack_any_shape(isa, key, value, seed, data)


@pytest.mark.slow
@EACH_ISA
@settings(PATIENT, max_examples=150)
@ANY_PACK
def test_many_packs_and_shapes(isa: str, key: Pack, value: Pack, seed: int, data: Any) -> None:
    any_pack_any_shape(isa, key, value, seed, data)


def any_pack_any_shape(isa: str, key: Pack, value: Pack, seed: int, data: Any) -> None:
    exact = data.draw(st.sampled_from(FLOATS))
    ratio, queries = (
        data.draw(st.sampled_from([1, 2, 3, 4, 5, 8])),
        data.draw(st.sampled_from([1, 1, 2, 3, 16])),
    )
    case = Case(
        key, value, np.random.default_rng(seed), data.draw(st.sampled_from([1, 1, 3])), ratio, queries, exact
    )
    softcap, threads = data.draw(st.sampled_from([0.0, 0.5, 20.0])), data.draw(st.integers(1, 3))
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "additive"]))
    mask, bias = _mask(kind, case)
    got = case.run(isa, mask=mask, softcap=softcap, causal=kind == "causal", threads=threads)
    case.check(got, case.expected(bias=bias, softcap=softcap))


def _mask(kind: str, case: Case) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What the kernel is given, and the same as a bias for the formula."""
    shape = (case.rows, case.key.heads * case.ratio, case.queries, case.stop)
    if kind == "none":
        return None, None
    if kind == "causal":
        seen = torch.ones(case.queries, case.stop, dtype=torch.bool).tril(case.stop - case.queries)
        return None, torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, float("-inf"))
    generator = torch.Generator().manual_seed(case.stop)
    if kind == "additive":
        mask = torch.randn(shape, generator=generator)
        return mask, mask.double()
    seen = torch.rand(case.rows, 1, case.queries, case.stop, generator=generator) > 0.4
    bias = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, float("-inf"))
    return seen.expand(shape), bias.expand(shape)


def _plain_case(
    seed: int, *, bits: int = 4, head_dim: int = 64, kind: dict[str, Any] | None = None, **options: Any
) -> Case:
    shape = {"heads": 2, "head_dim": head_dim, "page_tokens": 64, "bits": bits} | (kind or {})
    rng = np.random.default_rng(seed)
    return Case(Pack(keys=True, **shape), Pack(keys=False, **shape), rng, ratio=3, **options)


@pytest.mark.parametrize("isa", native.usable_isas())
@pytest.mark.parametrize("softcap", [0.25, 1.0, 5.0])
def test_a_low_cap_brings_nothing_back_that_is_not_there(isa: str, softcap: float) -> None:
    """Runs of tokens are filled up to whole vectors; where −cap is near the scores, the cap must not make the
    filling visible."""
    for seed in range(6):
        case = _plain_case(seed, rows=2)
        case.check(case.run(isa, softcap=softcap), case.expected(softcap=softcap))


@pytest.mark.parametrize("isa", native.usable_isas())
def test_sink_logits_join_the_softmax(isa: str) -> None:
    for seed in range(5):
        case = _plain_case(seed, rows=2)
        logits = torch.randn(6) * 4
        case.check(case.run(isa, sink_logits=logits), case.expected(sink_logits=logits))


@pytest.mark.parametrize("isa", native.usable_isas())
def test_a_later_start_hides_earlier_positions(isa: str) -> None:
    for seed in range(8):
        case = _plain_case(seed, rows=2, queries=2)
        start = int(case.rng.integers(0, case.stop - 1))
        bias = torch.zeros(case.stop, dtype=torch.float64)
        bias[:start] = float("-inf")
        mask = torch.randn(2, 6, 2, case.stop - start)
        padded = torch.cat([torch.zeros(2, 6, 2, start), mask], -1).double()
        case.check(case.run(isa, start=start, mask=mask), case.expected(bias=bias + padded))


@pytest.mark.parametrize("isa", native.usable_isas())
@pytest.mark.parametrize("awkward", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_awkward_numbers_give_what_the_formula_gives(isa: str, awkward: float, where: str) -> None:
    for seed in range(3):
        case = _plain_case(seed)
        if where == "query":
            case.query[0, 1, 0, 5] = awkward
        else:
            case.sides[where == "value"]["exact"][1].fill_(awkward)
        _same_kinds(case.run(isa), case.expected().float().double())


@pytest.mark.parametrize("isa", native.usable_isas())
def test_a_scale_that_is_not_a_number_shows(isa: str) -> None:
    case = next(c for c in map(_plain_case, range(50)) if c.sides[0]["visible"][0])
    pages, scale_at = case.sides[0]["pages"][0], case.key.offsets()[1]
    pages.buffer[scale_at : scale_at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    pages.decoded[0, 0] = np.nan  # the first token of the first head
    _same_kinds(case.run(isa), case.expected())


def _same_kinds(got: torch.Tensor, want: torch.Tensor) -> None:
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(got), kind(want)), kind


@pytest.mark.parametrize("isa", native.usable_isas())
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("head_dim", [20, 40, 64, 80])
@pytest.mark.parametrize("scaled", [True, False])
def test_nothing_outside_a_page_is_read(isa: str, bits: int, head_dim: int, scaled: bool) -> None:
    """Records end where unreadable memory begins: a read beyond one would end the process. Without scales
    they end with their codes."""
    kind: dict[str, Any] = {} if scaled else {"has_scale": False, "code": "table", "table": _table(bits)}
    for seed in range(2):
        case = _plain_case(seed, bits=bits, head_dim=head_dim, kind=kind)
        guards = [
            GuardedPages(side, pack.offsets()[3]) for side, pack in zip(case.sides, (case.key, case.value))
        ]
        case.check(case.run(isa), case.expected())
        for guard in guards:
            guard.close()
