"""What a codec from outside says of itself is what is stored: its encode, its words, its groups, its loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantkv import QuantizedCache, QuantKVError, parse_spec
from quantkv.codecs import Codec, CodecFamily, Field, Kernel, Sharing, register_codec
from quantkv.codecs.affine import Affine
from quantkv.codecs.registry import FAMILIES, OPTIONS, CodecOptions
from quantkv.testing import check_codec, check_words


class Clipped(Affine):
    """int4 of which the range is made of 0.8 of each extreme."""

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        return super().encode(x.clamp(0.8 * low, 0.8 * high))

    def kernel(self) -> Kernel:
        return replace(super().kernel(), encodes=False)


class Signs(Codec):
    """±1/2, eight tokens at once: lossy, and without a scale."""

    group_tokens = 8

    def fields(self, num_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Field, ...]:
        return (Field("codes", torch.uint8, num_heads, 1, head_dim, bits=1),)

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        return {"codes": (x > 0).to(torch.uint8)}

    def decode(self, fields: dict[str, Tensor], head_dim: int, dtype: torch.dtype) -> Tensor:
        return fields["codes"].to(dtype) - 0.5


def deaf(options: CodecOptions) -> Codec:
    return Affine(4, Sharing())


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAMILIES, "known", dict(FAMILIES.known))
    register_codec(CodecFamily("clipped", 4, lambda options: Clipped(4, Sharing())))
    register_codec(CodecFamily("signs", 1, lambda options: Signs(), sharings=()))
    register_codec(CodecFamily("deaf", 4, deaf, sharings=("token-head", "channel")))
    register_codec(CodecFamily("deaf-too", 4, deaf, options=("bf16",)))


@pytest.mark.parametrize("name", ["clipped", "signs"])
def test_codecs_from_outside_keep_the_contract(name: str) -> None:
    check_codec(f"{name}+r8+s2+k8")


def test_a_cache_stores_what_the_codec_encodes(tiny_llama: torch.nn.Module) -> None:
    """Though kernels read these fields, and know another rule that gives such codes."""
    cache = QuantizedCache(tiny_llama.config, "clipped+r0+f1+s0+k0")
    heads, width = tiny_llama.config.num_key_value_heads, tiny_llama.config.head_dim
    x = torch.randn(1, heads, 40, width)
    cache.update(x, x, 0)
    key, _ = cache.update(x[:, :, :1], x[:, :, :1], 0)
    codec = Clipped(4, Sharing())
    expected = codec.decode(codec.encode(x), width, torch.float32)
    assert torch.equal(key[:, :, :40], expected)
    assert expected.abs().max() < 0.85 * x.abs().max()


def test_what_a_codec_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(QuantKVError, match="clipped needs one of the sharing words token-head, not"):
        parse_spec("clipped-channel@g32")
    with pytest.raises(QuantKVError, match=r"unknown option 'sym' in 'clipped-head@sym'; legal: none"):
        parse_spec("clipped-head@sym")
    with pytest.raises(QuantKVError, match="signs takes no sharing word, not 'token-head'"):
        parse_spec("signs-head")
    with pytest.raises(QuantKVError, match="fp8-e4m3 does not take sym; legal options: fp16, bf16, fp32"):
        replace(parse_spec("fp8-e4m3").key, symmetric=True)


def test_a_family_that_names_words_which_do_not_exist_is_refused() -> None:
    with pytest.raises(QuantKVError, match="'x' cannot take row; legal words: token-head, token,"):
        CodecFamily("x", 4, deaf, sharings=("row",))
    with pytest.raises(QuantKVError, match=f"'x' cannot take fast; legal words: {', '.join(OPTIONS)}"):
        CodecFamily("x", 4, deaf, options=("fast",))
    with pytest.raises(QuantKVError, match="'x' is raw and has no scales"):
        CodecFamily("x", None, deaf, raw=True)


def test_the_contract_fails_for_a_builder_that_ignores_a_word() -> None:
    with pytest.raises(AssertionError, match="deaf stores the same for token-head and channel"):
        check_codec("deaf-head")
    with pytest.raises(AssertionError, match="deaf-too stores the same with and without bf16"):
        check_words("deaf-too")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Kernel("affine", Sharing(), has_zero=False), r"reads \['scale'\] .* \['scale', 'zero'\]"),
        (Kernel("affine", Sharing(tokens=8), has_zero=True), "shares scales as Sharing.tokens=8"),
        (
            Kernel("table", Sharing(), has_zero=True, table=(0.0, 1.0)),
            "2 numbers for codes of 4 bits",
        ),
    ],
)
def test_a_kernel_that_would_read_other_bytes_than_the_fields_is_refused(
    kernel: Kernel, words: str, monkeypatch: pytest.MonkeyPatch, tiny_llama: torch.nn.Module
) -> None:
    monkeypatch.setattr(Clipped, "kernel", lambda self: kernel)
    cache = QuantizedCache(tiny_llama.config, "clipped")
    x = torch.randn(1, tiny_llama.config.num_key_value_heads, 4, tiny_llama.config.head_dim)
    with pytest.raises(QuantKVError, match=words):
        cache.update(x, x, 0)


def test_a_chunk_is_whole_groups_of_the_codec() -> None:
    assert parse_spec("signs").key.flush == 32
    assert parse_spec("signs+f24").key.flush == 24
    with pytest.raises(QuantKVError, match="flush 12 is not a multiple of the group of 8 tokens; legal: 8"):
        parse_spec("signs+f12")


def test_a_lossy_codec_without_scales_is_not_taken_for_floats() -> None:
    spec = parse_spec("signs")
    assert not spec.is_raw
    assert (spec.key.recent, spec.sinks) == (64, 4)
    assert parse_spec("fp16").is_raw
