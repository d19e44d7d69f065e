"""What a codec from outside says of itself is what is stored: its encode, its words, its groups, its loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from quantkv import QuantizedCache, QuantKVError, TensorSpec, parse_spec
from quantkv.codecs import Affine as AffineCode
from quantkv.codecs import (
    Codec,
    CodecFamily,
    Codes,
    Field,
    Map,
    Place,
    Scale,
    Sharing,
    Table,
    Tokens,
    codes_field,
    register_codec,
    register_map,
)  # fmt: skip
from quantkv.codecs.affine import Affine, AffineOptions
from quantkv.codecs.maps.had import Had
from quantkv.codecs.registry import FAMILIES, MAPS
from quantkv.codecs.terms import Term
from quantkv.testing import check_codec, check_words, round_trip


class Clipped(Affine):
    """int4 of which the range is made of 0.8 of each extreme."""

    rule = None

    def __init__(self) -> None:
        super().__init__(4, Sharing())
        self.rule = None

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        return super().encode(x.clamp(0.8 * low, 0.8 * high), tokens)


@dataclass(frozen=True)
class SignOptions:
    """One of each sort: another middle, another distance from it, how many tokens at once."""

    up: bool = False
    size: Literal["small", "large"] = "small"
    block: int = 8

    def __post_init__(self) -> None:
        if self.block not in (4, 8, 16):
            raise QuantKVError(f"block must be 4, 8 or 16, not {self.block}")


class Signs(Codec):
    """What is above the mean of some tokens (or half of it) up, the rest down: lossy, with a fixed scale."""

    def __init__(self, options: SignOptions) -> None:
        self.options, self.group_tokens = options, options.block

    def fields(self, place: Place) -> tuple[Field, ...]:
        return codes_field(place, 1), Field("step", torch.float16, place.num_heads, 1, 1)

    def terms(self, place: Place) -> tuple[Term, ...]:
        return (Codes("codes", AffineCode(0.5), (Scale("step", Sharing()),)),)

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        groups = x.unflatten(2, (-1, self.group_tokens))
        middle = groups.mean((3, 4), keepdim=True)
        middle = middle / 2 if self.options.up else middle
        step = 1.0 if self.options.size == "small" else 2.0
        codes = (groups > middle).flatten(2, 3).to(torch.uint8)
        return {"codes": codes, "step": torch.full((*x.shape[:3], 1), step, dtype=torch.float16)}


def deaf(sharing: Sharing | None, options: Any) -> Codec:
    return Affine(4, Sharing())


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (FAMILIES, MAPS):
        monkeypatch.setattr(registry, "known", dict(registry.known))
    register_codec(CodecFamily("clipped", 4, lambda sharing, options: Clipped()))
    register_codec(CodecFamily("signs", 1, lambda sharing, o: Signs(o), sharings=(), options=SignOptions))
    register_codec(CodecFamily("deaf", 4, deaf, sharings=("token-head", "channel")))


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
    expected = round_trip(parse_spec("clipped").key.at(Place("key", heads, width)), x)
    assert torch.equal(key[:, :, :40], expected)
    assert expected.abs().max() < 0.85 * x.abs().max()


def test_what_a_codec_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(QuantKVError, match=r"clipped needs one of the sharing words token-head .-head., not"):
        parse_spec("clipped-channel@g32")
    with pytest.raises(QuantKVError, match=r"unknown option 'sym' in 'clipped-head@sym'; legal: none"):
        parse_spec("clipped-head@sym")
    with pytest.raises(QuantKVError, match="signs takes no sharing word, not 'token-head'"):
        parse_spec("signs-head")
    with pytest.raises(
        QuantKVError, match=r"fp8-e4m3 takes options of Float8Options \(fp16 bf16 fp32\), not Aff"
    ):
        replace(parse_spec("fp8-e4m3").key, options=AffineOptions(sym=True))


# options of one's own


def test_options_are_words_in_the_order_of_their_fields() -> None:
    spec = parse_spec("signs@block4.large.up.had")
    assert spec.key.options == SignOptions(up=True, size="large", block=4)
    assert str(spec) == "signs@up.large.block4.had"
    assert parse_spec(str(spec)) == spec
    assert str(parse_spec("signs@block8.small")) == "signs"
    assert str(TensorSpec(codec="signs", options=SignOptions(block=16))) == "signs@block16"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("signs@g8", "only token and channel take a group, signs does not"),
        ("signs@uq", "'uq' in 'signs@uq'; legal: up small large blockN; maps: ctr had"),
        ("signs@bloc4", r"unknown option 'bloc4'"),
        ("signs@larg", r"did you mean 'large'"),
        ("signs@small.large", "size is said twice, at last as 'large'"),
        ("signs@up.up", "says up twice"),
        ("signs@block5", "block must be 4, 8 or 16, not 5"),
    ],
)
def test_options_that_are_none_or_said_twice_are_refused(text: str, words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        parse_spec(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SignOptions(size="huge"), "size of signs cannot be 'huge'; legal: small, large"),  # type: ignore[arg-type]
        (SignOptions(up=1), "up of signs cannot be 1; legal: up"),  # type: ignore[arg-type]
        (AffineOptions(), r"signs takes options of SignOptions \(up small large blockN\), not AffineOptions"),
        ("up", "signs takes options of SignOptions"),
    ],
)
def test_options_that_no_word_says_are_refused(options: Any, words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        TensorSpec(codec="signs", options=options)


def test_the_chunk_follows_the_options() -> None:
    assert parse_spec("signs@block16").key.flush == 32
    assert parse_spec("signs@block16", flush=40).key.flush == 48
    with pytest.raises(QuantKVError, match="flush 24 is not a multiple of the group of 16 tokens"):
        parse_spec("signs@block16+f24")


def declares(**fields: tuple[Any, Any]) -> type[Any]:
    """A frozen dataclass of these fields, each a type and a default."""
    body = {"__annotations__": {name: kind for name, (kind, _) in fields.items()}}
    return dataclass(frozen=True)(
        type("Declared", (), body | {n: default for n, (_, default) in fields.items()})
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            declares(step=(float, 1.0)),
            "'step' must be a bool that is False by default, an int of 0 or more, or",
        ),
        (declares(up=(bool, True)), "'up' must be a bool that is False by default"),
        (declares(size=(Literal[1, 2], 1)), "'size' must be"),
        (declares(size=(Literal["a", "b"], "c")), "'size' must be"),
        (declares(g=(int, 4)), "'g' cannot be said"),
        (declares(w5=(bool, False)), "'w5' cannot be said"),
        (declares(size=(Literal["one", "r5"], "one")), "'r5' cannot be said"),
        (declares(two_words=(bool, False)), "'two_words' cannot be said"),
        (declares(rank2=(int, 4)), "'rank2' is followed by digits: give it letters alone"),
        (declares(rank=(int, 4), rank8=(bool, False)), "rank8 cannot be told apart"),
        (declares(up=(bool, False), way=(Literal["up", "down"], "up")), "up cannot be told apart"),
        (declares(had=(bool, False)), r"'had' is a map \(quantkv.codecs.maps.had\) and an option of 'x'"),
        (("bf16",), r"options must be a frozen dataclass, not \('bf16',\)"),
        (dataclass(type("Thawed", (), {})), "options must be a frozen dataclass"),
    ],
)
def test_options_that_cannot_be_said_are_refused_at_registration(options: Any, words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        register_codec(CodecFamily("x", 4, deaf, options=options))


def test_a_map_cannot_be_called_as_an_option_is() -> None:
    with pytest.raises(QuantKVError, match=r"'large' is a map .* and an option of 'signs'"):
        register_map("large", Had)
    with pytest.raises(QuantKVError, match=r"'block7' is a map .* and an option of 'signs'"):
        register_map("block7", Had)


@pytest.mark.parametrize("word", ["g32", "w", "w128", "r5", "Had", "my_map", "a.b", "2had", ""])
def test_a_map_needs_a_word_that_can_be_said(word: str) -> None:
    with pytest.raises(QuantKVError, match="a map cannot be called"):
        register_map(word, Had)


def test_a_map_from_outside_is_a_word_like_ours() -> None:
    class Mine(Had):
        tensors = ("value",)

    register_map("mine", Mine)
    spec = parse_spec("int4-head@mine")
    assert (spec.key.maps, spec.value.maps) == ((), ("mine",))
    assert str(spec) == "int4-head@mine"
    assert str(parse_spec("k.int4-head@had+v.int4-head@had.mine")) == "int4-head@had.mine"
    with pytest.raises(QuantKVError, match="mine is a map of values alone: keys cannot take it"):
        parse_spec("k.int4-head@mine+v.int4-head")
    with pytest.raises(QuantKVError, match="'none' must be a map of key, of value, or of both"):
        register_map("none", type("None_", (Map,), {"tensors": ()}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r64", "cannot be called 'r64': use a-z"),
        ("k", "cannot be called 'k'"),
        ("Signs", "use a-z"),
        ("my_codec", "use a-z"),
        ("my.codec", "use a-z"),
        ("-x", "use a-z"),
        ("kivi-2", "that is a preset"),
        ("k8v4", "that is a preset"),
        ("int4-head", "'int4-head' is 'int4' with a sharing word"),
        ("signs-chunk-head", "'signs-chunk-head' is 'signs' with a sharing word"),
    ],
)
def test_a_codec_needs_a_name_that_can_be_read(name: str, words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        register_codec(CodecFamily(name, 4, deaf))


def test_a_name_that_would_take_another_is_refused_too() -> None:
    register_codec(CodecFamily("mine-token", 4, deaf))
    with pytest.raises(QuantKVError, match="'mine': 'mine-token' is 'mine' with a sharing word"):
        register_codec(CodecFamily("mine", 4, deaf))


def test_a_family_that_names_words_which_do_not_exist_is_refused() -> None:
    with pytest.raises(QuantKVError, match="'x' cannot take row; legal words: token-head, token,"):
        CodecFamily("x", 4, deaf, sharings=("row",))
    with pytest.raises(QuantKVError, match="'x' is raw and has no scales"):
        CodecFamily("x", None, deaf, raw=True)
    with pytest.raises(QuantKVError, match="version of 'x' must be an integer of at least 1, not 0"):
        CodecFamily("x", 4, deaf, version=0)


def test_the_contract_fails_for_a_builder_that_ignores_a_word() -> None:
    with pytest.raises(AssertionError, match="deaf stores the same for token-head and channel"):
        check_codec("deaf-head")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (declares(up=(bool, False)), "up"),
        (declares(size=(Literal["one", "two"], "one")), "two"),
        (declares(rank=(int, 4)), "rank8"),
        (declares(rank=(int, 0)), "rank1"),
    ],
)
def test_the_contract_fails_for_a_builder_that_ignores_an_option(options: Any, words: str) -> None:
    register_codec(CodecFamily("deaf-too", 4, deaf, options=options))
    with pytest.raises(AssertionError, match=f"deaf-too stores the same with and without {words}"):
        check_words("deaf-too")


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (
            Codes("codes", AffineCode(), (Scale("size", Sharing()),)),
            "reads a field 'size'; declared: codes, scale",
        ),
        (
            Codes("codes", AffineCode(), (Scale("scale", Sharing(tokens=8)),)),
            "'scale' is shared as Sharing.tokens=8",
        ),
        (Codes("codes", Table((0.0, 1.0))), "2 numbers for codes of 4 bits"),
    ],
)
def test_a_term_that_would_read_other_numbers_than_the_fields_is_refused(
    term: Term, words: str, monkeypatch: pytest.MonkeyPatch, tiny_llama: torch.nn.Module
) -> None:
    monkeypatch.setattr(Clipped, "terms", lambda self, place: (term,))
    with pytest.raises(QuantKVError, match=words):
        cache = QuantizedCache(tiny_llama.config, "clipped")
        x = torch.randn(1, tiny_llama.config.num_key_value_heads, 4, tiny_llama.config.head_dim)
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
