"""The native encoder and decoder against PyTorch's codecs and pages, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from default_specs import DEFAULT_SPECS
from native_pages import NativePages, tensors_of
from torch import Tensor

from quantkv import TensorSpec
from quantkv.codecs import Sharing, Table
from quantkv.codecs.affine import Affine
from quantkv.codecs.place import Place
from quantkv.codecs.terms import Term
from quantkv.engines.native import kernels
from quantkv.engines.program import page_format

native = kernels()
if native is None:
    pytest.skip("the native engine is switched off or not built", allow_module_level=True)

DIMS = (8, 16, 40, 64, 80, 96, 128)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEADS, ROWS = 2, 2
ISAS = native.usable_isas()
TENSORS = tensors_of(DEFAULT_SPECS)
FEW = [
    name
    for name in TENSORS
    if any(f" {codec}" in name for codec in ("int3", "int4", "int8", "fp8-e4m3", "fp16"))
    and "@g32" not in name
]
AWKWARD = [
    0.0,
    1.0,
    -1.0,
    1e-30,
    -1e-30,
    1e-41,
    6e4,
    -6e4,
    7e4,
    1e30,
    -1e30,
    3.4e38,
    3e-5,
    1 / 3,
    -2.5,
    5.0**-9,
]


def pages(name: str, dim: int, dtype: torch.dtype) -> NativePages:
    tensor, which = TENSORS[name]
    group = tensor.group or 1
    if tensor.sharing == "token" and dim % group:
        pytest.skip(f"groups of {group} channels do not divide {dim}")
    return NativePages(native, tensor, which, (ROWS, HEADS, dim), dtype)


def sizes(p: NativePages) -> list[int]:
    """A prompt over the end of a page, a flush of about 32, one group, the rest of a tile and a bit."""
    group = p.codec.group_tokens
    wanted = [p.layout.page_tokens + 40, 32, 1, 3, 50]
    return [max(group, size // group * group) for size in wanted]


def numbers(tokens: int, dim: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """`[ROWS, HEADS, tokens, dim]`, with tokens and channels of different sizes, not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, tokens, HEADS, dim, generator=generator)
    x *= 10 ** torch.linspace(-3, 2, tokens)[:, None, None] + torch.linspace(0, 3, dim)
    return x.to(dtype).transpose(1, 2)


def check_records(p: NativePages) -> None:
    for got, expected in zip(p.records, p.reference_records(), strict=True):
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.equal(mine, theirs)


def check_numbers(got: Tensor, expected: Tensor) -> None:
    """The same bits, and NaN at the same places."""
    assert torch.equal(got.isnan(), expected.isnan())
    sound = ~got.isnan()
    assert torch.equal(got[sound].view(torch.int32), expected[sound].view(torch.int32))


def check_fields(p: NativePages) -> None:
    """The same scales, zeros and codes, but for codes of groups that hold NaN."""
    for got, expected in zip(p.records, p.reference_records(), strict=True):
        mine, theirs = (p.layout.read(torch.stack(records)) for records in (got, expected))
        for name in mine.keys() - {"codes"}:
            assert torch.equal(mine[name].nan_to_num(123.0), theirs[name].nan_to_num(123.0))
        if "scale" in mine:
            check_codes(mine, theirs)


def check_codes(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    shape, scale = mine["codes"].shape, mine["scale"]
    by_token = scale.repeat_interleave(shape[2] // scale.shape[2], 2)
    sound = ~by_token.repeat_interleave(shape[3] // scale.shape[3], 3).isnan().expand(shape)
    assert torch.equal(mine["codes"][sound], theirs["codes"][sound])


def fill(p: NativePages, parts: list[Tensor], isa: str) -> None:
    p.clear()
    for part in parts:
        p.append(part, isa=isa)


def test_the_reference_is_not_native(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the reference called native code")

    p = pages(FEW[0], 64, torch.float32)
    monkeypatch.setattr(native, "encode", refuse)
    monkeypatch.setattr(native, "decode", refuse)
    p.store.append(range(ROWS), numbers(p.codec.group_tokens, 64, torch.float32))
    p.store.read(range(ROWS), 0, p.codec.group_tokens, torch.float32)


@pytest.mark.parametrize("name", TENSORS)
def test_pages_and_numbers_are_those_of_pytorch(name: str) -> None:
    for i, dim in enumerate(DIMS):
        group = TENSORS[name][0].group or 1
        if TENSORS[name][0].sharing == "token" and dim % group:
            continue
        dtype = DTYPES[i % 3]
        p = pages(name, dim, dtype)
        parts = [numbers(size, dim, dtype, seed) for seed, size in enumerate(sizes(p))]
        for part in parts:
            p.store.append(range(ROWS), part)
        stop = sum(sizes(p))
        expected = p.store.read(range(ROWS), 0, stop, torch.float32)
        for isa in ISAS:
            fill(p, parts, isa)
            check_records(p)
            check_numbers(p.read(0, stop, isa=isa), expected)
            check_numbers(p.read(13, stop - 5, threads=2, isa=isa), expected[:, :, 13 : stop - 5])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FEW)
def test_every_dtype_on_threads(name: str, dtype: torch.dtype) -> None:
    p = pages(name, 64, dtype)
    x = numbers(math.lcm(p.layout.page_tokens, 64) * 2, 64, dtype)
    p.store.append(range(ROWS), x)
    p.append(x, threads=3)
    check_records(p)


def awkward(dim: int, dtype: torch.dtype, group: int) -> list[Tensor]:
    """Constants of each awkward number, mixtures of them, and single infinite or undefined numbers."""
    tokens = -(-32 // group) * group
    constants = [torch.full((tokens, dim), number) for number in AWKWARD]
    mixed = torch.tensor(AWKWARD)[torch.arange(tokens * dim) * 7 % len(AWKWARD)].view(tokens, dim)
    small = torch.tensor([0.0, 1e-30, 2e-8, 7e-6])[torch.arange(tokens * dim) % 4].view(tokens, dim)
    spoiled = []
    for number in (math.inf, -math.inf, math.nan):
        x = numbers(tokens, dim, torch.float32)[0, 0].clone()
        x[tokens // 2, dim // 2] = number
        spoiled.append(x)
    everything = torch.cat([*constants, mixed, -mixed, small, -small, *spoiled])
    return list(everything.expand(ROWS, HEADS, -1, -1).to(dtype).split(tokens, 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TENSORS)
def test_awkward_numbers(name: str, dtype: torch.dtype) -> None:
    p = pages(name, 16 if "@g32" not in name else 32, dtype)
    parts = awkward(p.layout.head_dim, dtype, p.codec.group_tokens)
    for part in parts:
        p.store.append(range(ROWS), part)
    expected = p.store.read(range(ROWS), 0, p.store.used[0], torch.float32)
    for isa in ISAS:
        fill(p, parts, isa)
        check_fields(p)
        check_numbers(p.read(0, p.used, isa=isa), expected)


@pytest.mark.parametrize("name", TENSORS)
def test_bytes_that_nobody_wrote_do_no_harm(name: str) -> None:
    p = pages(name, 32, torch.float32)
    group = p.codec.group_tokens
    parts = [numbers(group * n, 32, torch.float32, n) for n in (1, 2, max(1, 32 // group), 3)]
    for part in parts:
        p.store.append(range(ROWS), part)
        p.append(part, fill=0xA5)
    check_numbers(p.read(0, p.used), p.store.read(range(ROWS), 0, p.used, torch.float32))


def test_pages_that_are_gone_are_not_read() -> None:
    p = (
        pages("value int4", 64, torch.float32)
        if "value int4" in TENSORS
        else pages(FEW[0], 64, torch.float32)
    )
    tokens = p.layout.page_tokens
    p.append(numbers(3 * tokens, 64, torch.float32))
    table = [[0, row[1].data_ptr(), 0] for row in p.records]
    out = torch.empty(ROWS, HEADS, tokens, 64)
    native.decode(p.format, table, tokens, 2 * tokens, out.data_ptr(), out.stride()[:3])
    check_numbers(out, p.read(tokens, 2 * tokens))
    with pytest.raises(ValueError, match="not there"):
        native.decode(p.format, table, tokens - 1, 2 * tokens, out.data_ptr(), out.stride()[:3])


def test_impossible_requests_are_refused() -> None:
    name = next(name for name in FEW if "channel@g16" in name)
    p = pages(name, 64, torch.float32)
    for x, reason in (
        (torch.zeros(ROWS, HEADS, 17, 64), "groups"),
        (torch.zeros(ROWS, HEADS, 16, 32), "shape"),
        (torch.zeros(ROWS + 1, HEADS, 16, 64), "shape"),
    ):
        with pytest.raises(ValueError, match=reason):
            p.append(x)
    p.clear()
    with pytest.raises(ValueError, match="instruction set"):
        p.append(torch.zeros(ROWS, HEADS, 16, 64), isa="z80")
    x = torch.zeros(ROWS, HEADS, 16, 64)
    with pytest.raises(ValueError, match="not there"):
        native.encode(p.format, [[], []], 0, x.data_ptr(), 0, tuple(x.shape), x.stride()[:3])


def test_a_table_is_read_like_a_formula() -> None:
    class Tabled(Affine):
        def terms(self, place: Place) -> tuple[Term, ...]:
            (codes,) = super().terms(place)
            return (replace(codes, number=Table(tuple(float(i) for i in range(16)))),)

    for which in ("key", "value"):
        p = NativePages(
            native, TensorSpec(codec="int4", sharing="token-head"), which, (ROWS, HEADS, 40), torch.float32
        )
        p.append(numbers(64, 40, torch.float32))
        expected = p.read(0, 64)
        p.format = page_format(replace(p.stored, codec=Tabled(4, Sharing())), p.layout)
        check_numbers(p.read(0, 64), expected)
        with pytest.raises(ValueError, match="table"):
            p.append(numbers(64, 40, torch.float32))
