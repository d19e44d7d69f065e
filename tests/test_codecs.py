"""Codecs: the contract each one keeps, and the error that each formula promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from default_specs import COMBINATIONS, DEFAULT_SPECS, OPTIONS, RAW_SPECS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantkv import TensorSpec, parse_spec
from quantkv.codecs import Codec, Place, Tokens, codec_family, compute_dtype
from quantkv.codecs.terms import decoded

HEADS, DIM = 3, 32
AFFINE = [t for t in (*COMBINATIONS, *OPTIONS) if t.startswith("int")]
OUTWARD = [t for t in AFFINE if ".near" not in t]
FLOAT8 = [t for t in (*COMBINATIONS, *OPTIONS) if t.startswith("fp8")]
UNIT = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-22}
"""One directed rounding of the metadata dtype, relative (float32 arithmetic on top for fp32)."""


def key_of(text: str) -> tuple[TensorSpec, Codec]:
    spec = parse_spec(text).key
    return spec, spec.build()


def encode(codec: Codec, x: Tensor) -> dict[str, Tensor]:
    return codec.encode(x, Tokens(Place("key", x.shape[1], x.shape[3], x.dtype)))


def decode(codec: Codec, fields: dict[str, Tensor], dim: int, dtype: torch.dtype) -> Tensor:
    return decoded(codec.terms(Place("key", HEADS, dim)), fields, dim, dtype)


def round_trip(codec: Codec, x: Tensor) -> Tensor:
    return decode(codec, encode(codec, x), x.shape[-1], compute_dtype(x.dtype))


def spread(entry: Tensor, shape: torch.Size) -> Tensor:
    """Metadata `[N, heads, T / tokens, width]` repeated over the elements that share it."""
    for dim in (1, 2, 3):
        entry = entry.repeat_interleave(shape[dim] // entry.shape[dim], dim)
    return entry.double()


def tokens_for(codec: Codec, least: int = 32) -> int:
    return math.lcm(codec.group_tokens, least)


def wide_data(codec: Codec, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values over ten orders of magnitude, a few heads and channels much larger than the others."""
    x = torch.randn(2, HEADS, tokens_for(codec), DIM, dtype=torch.float64)
    x *= 10 ** torch.empty(2, HEADS, 1, DIM, dtype=torch.float64).uniform_(-6, 3)
    x[0, 1, :, 5] += 3e4
    return x.to(dtype)


# --- contract ---
@pytest.mark.parametrize("text", DEFAULT_SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_fields_are_as_declared(text: str, dtype: torch.dtype) -> None:
    for tensor in (parse_spec(text).key, parse_spec(text).value):
        codec = tensor.build()
        x = torch.randn(2, HEADS, tokens_for(codec), 64, dtype=dtype)
        encoded, declared = encode(codec, x), codec.fields(Place("key", HEADS, 64, dtype))
        assert set(encoded) == {f.name for f in declared}
        for f in declared:
            assert encoded[f.name].dtype == f.dtype
            assert tuple(encoded[f.name].shape) == (2, *f.shape(x.shape[2]))
            assert f.bits is None or int(encoded[f.name].max()) < 2**f.bits
        for out in (torch.float32, torch.float64):
            back = decode(codec, encoded, 64, out)
            assert back.shape == x.shape and back.dtype == out


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_rows_and_groups_are_encoded_apart(text: str) -> None:
    """Encoding two rows or two chunks at once stores what encoding each alone stores."""
    for tensor in (parse_spec(text).key, parse_spec(text).value):
        codec = tensor.build()
        group = codec.group_tokens
        x = torch.randn(2, HEADS, 2 * group, 64)
        x[1] *= 1000
        whole, row = encode(codec, x), encode(codec, x[:1])
        first, second = encode(codec, x[:, :, :group]), encode(codec, x[:, :, group:])
        for name, field in whole.items():
            assert torch.equal(field[:1], row[name])
            assert torch.equal(field, torch.cat([first[name], second[name]], 2))


@pytest.mark.parametrize("text", [*COMBINATIONS, *OPTIONS])
def test_half_precision_input_is_encoded_as_its_float32_values(text: str) -> None:
    codec = parse_spec(text).key.build()
    x = torch.randn(1, HEADS, tokens_for(codec), 64).to(torch.bfloat16)
    half, full = encode(codec, x), encode(codec, x.float())
    assert all(torch.equal(half[name], full[name]) for name in full)


# --- affine integers against the formula in numpy ---
def directed(x: np.float32, dtype: type, up: bool) -> np.float32:
    stored = dtype(x)
    if (np.float32(stored) < x) if up else (np.float32(stored) > x):
        stored = np.nextafter(stored, dtype(np.inf if up else -np.inf))
    return np.float32(stored)


def affine_by_formula(block: np.ndarray, tensor: TensorSpec) -> np.ndarray:
    """`x̂ = code · scale + zero` of one block that shares a scale, as the module docstring states it."""
    bits, dtype = tensor.bits, {"fp16": np.float16, "fp32": np.float32}[tensor.options.metadata]
    steps = np.float32(2 ** (bits - 1) - 1 if tensor.options.sym else 2**bits - 1)
    low, high = (np.float32(0), np.abs(block).max()) if tensor.options.sym else (block.min(), block.max())
    zero = (
        np.float32(0)
        if tensor.options.sym
        else (directed(low, dtype, False) if not tensor.options.near else np.float32(dtype(low)))
    )
    if not tensor.options.near:
        smallest = np.float32(2.0**-24 if dtype is np.float16 else np.finfo(np.float32).tiny)
        stored = high if tensor.options.sym else (high - zero) / steps
        unit = np.float32(1 / steps) if tensor.options.sym else np.float32(1)
        scale = directed(max(stored, smallest), dtype, True) * unit
    else:
        scale = np.float32(dtype((high - low) / steps)) or np.float32(1)
    codes = np.clip(np.rint((block - zero) / scale), -steps if tensor.options.sym else 0, steps)
    return codes * scale + zero


def block_shape(tensor: TensorSpec) -> tuple[int, int, int]:
    """(heads, tokens, channels) of a block."""
    return {
        "token-head": (1, 1, DIM),
        "token": (1, 1, tensor.group or 0),
        "token-all": (HEADS, 1, DIM),
        "channel": (1, tensor.group or 0, 1),
        "chunk-head": (1, tensor.flush, DIM),
        "chunk": (HEADS, tensor.flush, DIM),
    }[tensor.sharing or ""]


@pytest.mark.parametrize("text", [t for t in AFFINE if "bf16" not in t])
def test_affine_equals_its_formula_block_by_block(text: str) -> None:
    tensor, codec = key_of(text)
    x = torch.randn(2, HEADS, tokens_for(codec), DIM) * 3 + 1
    expected = np.empty(x.shape, dtype=np.float32)
    heads, tokens, channels = block_shape(tensor)
    for n in range(2):
        for h in range(0, HEADS, heads):
            for t in range(0, x.shape[2], tokens):
                for d in range(0, DIM, channels):
                    at = (n, slice(h, h + heads), slice(t, t + tokens), slice(d, d + channels))
                    expected[at] = affine_by_formula(x.numpy()[at], tensor)
    assert np.array_equal(round_trip(codec, x).numpy(), expected)


@pytest.mark.parametrize("text", OUTWARD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_clips(text: str, dtype: torch.dtype) -> None:
    """Every element comes back within half of its stored step; one outside the stored range would not."""
    _, codec = key_of(text)
    x = wide_data(codec, dtype)
    fields = encode(codec, x)
    error = (decode(codec, fields, DIM, dtype).double() - x.double()).abs()
    size = x.double().abs() + (spread(fields["zero"], x.shape).abs() if "zero" in fields else 0)
    slack = size * 4 * torch.finfo(dtype).eps
    assert (error <= spread(fields["scale"], x.shape) / 2 + slack).all()


def test_published_rounding_stays_close() -> None:
    """To nearest, a value may lie outside the stored range by the rounding of zero and scale."""
    for bits in (2, 4, 8):
        codec = parse_spec(f"int{bits}-channel@g32.near").key.build()
        x = wide_data(codec)
        fields = encode(codec, x)
        zero, scale = (spread(fields[name], x.shape) for name in ("zero", "scale"))
        error = (round_trip(codec, x).double() - x.double()).abs()
        rounding = (zero.abs() + scale * (2**bits - 1)) * 2.0**-11 + 2**bits * 2.0**-25
        assert (error <= scale / 2 + rounding * 1.01 + 2.0**-24).all()


def test_group_of_kivi_as_published() -> None:
    """Known answer: `sin(i) · (1 + i / 10)` in 2 bits is 2 3 3 2 0 0 1 3."""
    i = torch.arange(8, dtype=torch.float64)
    x = (torch.sin(i) * (1 + 0.1 * i)).float().view(1, 1, 1, 8)
    fields = encode(parse_spec("int2-token@g8.near").key.build(), x)
    assert fields["codes"].flatten().tolist() == [2, 3, 3, 2, 0, 0, 1, 3]
    assert fields["zero"].item() == np.float16(-1.4383864402770996)
    assert fields["scale"].item() == np.float16(0.8517544865608215)


# --- groups that break naive quantizers ---
CONSTANTS = [0.0, 5.0, -3.0, 1e-30, -1e-30, 1e-8, 6e4, -6e4]


def allowed(text: str, value: float) -> float:
    """One rounding of what is stored, times the largest code where the scale itself is stored."""
    tensor, _ = key_of(text)
    if tensor.is_raw:
        return {"fp16": max(abs(value) * 2.0**-11, 2.0**-25), "bf16": abs(value) * 2.0**-8}.get(
            tensor.codec, 0.0
        )
    smallest = 2.0**-24 if tensor.options.metadata == "fp16" else 1.2e-38
    divided = "sym" in text and "near" in text  # as published: the scale itself is stored
    codes = 2 ** ((tensor.bits or 0) - 1) - 1 if divided else 1
    return max(abs(value) * UNIT[tensor.options.metadata], codes * smallest)


@pytest.mark.parametrize("text", [*COMBINATIONS, *OPTIONS, *RAW_SPECS])
def test_constant_groups_come_back(text: str) -> None:
    _, codec = key_of(text)
    for value in CONSTANTS:
        x = torch.full((1, HEADS, codec.group_tokens, DIM), value)
        fields = encode(codec, x)
        assert all(f.isfinite().all() for f in fields.values() if f.is_floating_point())
        assert (decode(codec, fields, DIM, torch.float32) - x).abs().max().item() <= allowed(text, value), (
            value
        )


@pytest.mark.parametrize("text", [*COMBINATIONS, *OPTIONS])
@pytest.mark.parametrize("spike", [6e4, -6e4, 1e-30])
def test_one_spike_stays_finite_and_is_kept(text: str, spike: float) -> None:
    _, codec = key_of(text)
    x = torch.zeros(1, HEADS, codec.group_tokens, DIM)
    x[0, 1, 0, 7] = spike
    fields = encode(codec, x)
    assert all(f.isfinite().all() for f in fields.values() if f.is_floating_point())
    assert abs(decode(codec, fields, DIM, torch.float32)[0, 1, 0, 7].item() - spike) <= max(
        abs(spike) * 2.0**-6, 1e-6
    )


@pytest.mark.parametrize("text", [*COMBINATIONS, *OPTIONS])
def test_values_beyond_half_precision_stay_finite(text: str) -> None:
    _, codec = key_of(text)
    x = torch.randn(1, HEADS, codec.group_tokens, DIM) * 1e6
    fields = encode(codec, x)
    assert all(f.isfinite().all() for f in fields.values() if f.is_floating_point())
    assert decode(codec, fields, DIM, torch.float32).isfinite().all()


# --- 8-bit floats ---
MANTISSA = {"fp8-e4m3": (2.0**-4, 2.0**-10), "fp8-e5m2": (2.0**-3, 2.0**-17)}
"""Largest relative error of a normal number, and half the spacing of subnormal ones."""


@pytest.mark.parametrize("text", FLOAT8)
def test_float8_error(text: str) -> None:
    tensor, codec = key_of(text)
    x = wide_data(codec)
    fields = encode(codec, x)
    relative, subnormal = MANTISSA[tensor.codec]
    error = (decode(codec, fields, DIM, torch.float32).double() - x.double()).abs()
    scale = spread(fields["scale"], x.shape)
    assert (error <= torch.maximum(x.double().abs() * relative, scale * subnormal) * (1 + 1e-6)).all()


@settings(max_examples=100, deadline=None)
@given(largest=st.floats(min_value=1e-3, max_value=6e4), codec=st.sampled_from(["fp8-e4m3", "fp8-e5m2"]))
def test_float8_never_overflows_at_its_largest_value(largest: float, codec: str) -> None:
    x = torch.tensor([largest, -largest, largest * 0.99, 0.0] * 8).view(1, 1, 1, 32)
    back = round_trip(parse_spec(codec if codec == "fp8-e4m3" else f"{codec}-head").key.build(), x)
    assert back.isfinite().all()
    assert abs(back[0, 0, 0, 0].item() - x[0, 0, 0, 0].item()) <= x[0, 0, 0, 0].item() * MANTISSA[codec][0]


def test_float8_scale_by_hand() -> None:
    """The largest magnitude, 896, is stored and takes the code 448: steps of 2. 100 / 2 = 50 ties between 48
    and 52: even."""
    x = torch.zeros(1, 1, 1, 32)
    x[..., :4] = torch.tensor([896.0, -896.0, 100.0, 3.0])
    codec = parse_spec("fp8-e4m3").key.build()
    assert encode(codec, x)["scale"].item() == 896.0
    assert round_trip(codec, x)[0, 0, 0, :4].tolist() == [896.0, -896.0, 96.0, 3.0]


def test_later_outliers_keep_their_relative_error() -> None:
    """A scale of their own for every token: tokens fifty times larger than the first lose no accuracy."""
    x = torch.randn(1, HEADS, 64, DIM)
    x[:, :, 32:] *= 50
    error = (round_trip(parse_spec("fp8-e4m3").key.build(), x) - x)[:, :, 32:].norm() / x[:, :, 32:].norm()
    assert 0 < error <= 0.1


# --- raw floats ---
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_exact_is_lossless(dtype: torch.dtype) -> None:
    codec = parse_spec("exact").key.build()
    x = (torch.randn(2, HEADS, 5, DIM) * 1e3).to(dtype)
    assert torch.equal(decode(codec, encode(codec, x), DIM, torch.float64), x.double())


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_raw_floats_round_once(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, HEADS, 5, DIM)
    assert torch.equal(round_trip(parse_spec(name).key.build(), x), x.to(dtype).float())
    assert codec_family(name).bits is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_raw_floats_of_models_of_any_dtype(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -0.25, torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype).view(
        1, 1, 1, 4
    )
    back = encode(parse_spec(name).key.build(), x)["values"].double().flatten()
    assert back.isfinite().all()
    assert back[:2].tolist() == [1.5, -0.25]


def test_raw_floats_clamp_what_they_cannot_hold() -> None:
    x = torch.tensor([1e6, -1e6, 65504.0, 1.0]).view(1, 1, 1, 4)
    assert round_trip(parse_spec("fp16").key.build(), x).flatten().tolist() == [
        65504.0,
        -65504.0,
        65504.0,
        1.0,
    ]


# --- mean squared error on Gaussian data: closed-form study values, ten percent either way ---
MSE = {
    "int2-channel@g32": 1.544e-01, "int3-channel@g32": 2.814e-02, "int4-channel@g32": 6.123e-03,
    "int8-channel@g32": 2.119e-05,
    "int2-token@g32": 1.546e-01, "int3-token@g32": 2.814e-02, "int4-token@g32": 6.125e-03,
    "int8-token@g32": 2.122e-05,
    "int2-channel@g32.near": 1.544e-01, "int2-token@g32.near": 1.546e-01, "int4-channel@g32.near": 6.123e-03,
    "int2-head": 2.511e-01, "int3-head": 4.579e-02, "int4-head": 9.966e-03, "int8-head": 3.449e-05,
    "int4-head@sym": 1.378e-02, "int8-head@sym": 4.185e-05, "fp8-e4m3": 6.605e-04,
}  # fmt: skip


@pytest.mark.parametrize("text", list(MSE))
def test_error_on_gaussian_data_is_what_theory_says(text: str) -> None:
    x = torch.randn(4, 8, 128, 128)
    error = (round_trip(parse_spec(text).key.build(), x) - x).square().mean() / x.square().mean()
    assert error.item() == pytest.approx(MSE[text], rel=0.1)


def test_channel_scales_survive_hot_channels_and_token_scales_do_not() -> None:
    x = torch.randn(2, 8, 256, 128) * torch.empty(1, 8, 1, 128).uniform_(0.5, 1.5) + torch.randn(1, 8, 1, 128)
    x[:, :, :, :4] += 8.0
    error = {
        text: (round_trip(parse_spec(text).key.build(), x) - x).square().mean().item()
        for text in ("int4-channel@g32", "int4-head", "int4-chunk+f32")
    }
    assert error["int4-head"] > 5 * error["int4-channel@g32"]
    assert error["int4-chunk+f32"] > error["int4-head"]
