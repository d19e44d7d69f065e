"""Specs: the short string, its defaults, what it refuses, and that every registered name is under test."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import pytest
import torch
from default_specs import DEFAULT_SPECS, PRESETS
from hypothesis import given, settings
from hypothesis import strategies as st

import quantkv
from quantkv import CacheSpec, QuantKVError, TensorSpec, parse_spec, presets
from quantkv.codecs import codec_family, codec_names
from quantkv.codecs.affine import AffineOptions
from quantkv.codecs.float8 import Float8Options
from quantkv.codecs.options import options_of
from quantkv.codecs.registry import map_named, map_words
from quantkv.policy import POLICIES, Length, Window, register_policy
from quantkv.spec.specs import LayerRange
from quantkv.version import METHODS

WORDS = ("token-head", "token", "token-all", "channel", "chunk-head", "chunk")
PUBLIC = (
    "QuantizedCache", "parse_spec", "presets", "simulate", "use", "evaluate", "perplexity",
    "load_results", "load_model", "load_text", "CacheSpec", "TensorSpec",
)  # fmt: skip


def specs_under_test() -> list[CacheSpec]:
    found = [parse_spec(text) for text in DEFAULT_SPECS]
    return found + [override for spec in found for _, override in spec.layers]


def test_every_registered_name_is_under_test() -> None:
    tensors = [t for spec in specs_under_test() for t in (spec.key, spec.value)]
    assert {t.codec for t in tensors} == set(codec_names())
    scaled = [name for name in codec_names() if codec_family(name).sharings]
    pairs = {(t.codec, t.sharing) for t in tensors}
    assert {(name, word) for name in scaled for word in codec_family(name).sharings} <= pairs
    assert set(PRESETS) == set(presets())


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_exist(name: str) -> None:
    assert name in dir(quantkv)
    assert callable(getattr(quantkv, name))


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        quantkv.no_such_name  # noqa: B018


@pytest.mark.parametrize("text", DEFAULT_SPECS)
def test_default_specs_print_and_parse(text: str) -> None:
    spec = parse_spec(text)
    assert re.fullmatch(r"[a-z0-9.@+-]+", str(spec))
    assert parse_spec(str(spec)) == spec
    assert parse_spec(spec.name) == spec


@pytest.mark.parametrize("name", PRESETS)
def test_presets_print_their_own_name(name: str) -> None:
    spec = presets()[name]
    assert spec.name == name
    assert parse_spec(name) == spec
    assert parse_spec(name + "+s9") != spec


# --- random specs ---
@st.composite
def tensor_specs(draw: st.DrawFn, which: str) -> TensorSpec:
    codec = draw(st.sampled_from(codec_names()))
    recent, flush = draw(st.sampled_from([0, 1, 64, 128])), draw(st.sampled_from([1, 7, 32, 96]))
    family = codec_family(codec)
    if family.raw:
        return TensorSpec(codec=codec, recent=recent, flush=flush)
    sharing = draw(st.sampled_from(family.sharings or (None,)))
    group = draw(st.sampled_from([2, 16, 32, 48])) if sharing in ("token", "channel") else None
    if sharing == "channel" and group:
        flush = group * draw(st.integers(1, 3))
    options = {o.field: draw(st.sampled_from([o.default, *o.others()])) for o in options_of(family.options)}
    maps = draw(
        st.lists(st.sampled_from([m for m in map_words() if which in map_named(m).tensors]), unique=True)
    )
    if family.unit and not any(map_named(m).unit for m in maps):
        maps.append(draw(st.sampled_from(["norm", "normall"])))
    return TensorSpec(
        codec=codec,
        sharing=sharing,
        group=group,
        options=family.options(**options),
        maps=tuple(maps),
        fit_tokens=draw(st.sampled_from([0, 2, 256])) if any(map_named(m).fits for m in maps) else 0,
        recent=recent,
        flush=flush,
    )


def layer_ranges() -> st.SearchStrategy[LayerRange]:
    numbers = st.integers(-3, 3)
    pairs = st.tuples(numbers, numbers).filter(
        lambda pair: (pair[0] < 0) != (pair[1] < 0) or pair[0] <= pair[1]
    )
    return st.one_of(pairs.map(lambda pair: LayerRange(*pair)), numbers.map(lambda n: LayerRange(n, n)))


def for_values(key: TensorSpec) -> TensorSpec:
    """The same, without maps of keys alone."""
    maps = tuple(word for word in key.maps if "value" in map_named(word).tensors)
    return replace(key, maps=maps, fit_tokens=0)


@st.composite
def cache_specs(draw: st.DrawFn, layers: bool = True) -> CacheSpec:
    key = draw(tensor_specs("key"))
    value = draw(st.one_of(tensor_specs("value"), st.just(for_values(key))))
    overrides: dict[str, tuple[LayerRange, CacheSpec]] = {}
    if layers:
        for where in draw(st.lists(layer_ranges(), max_size=2)):
            overrides[str(where)] = (where, draw(cache_specs(layers=False)))
    sinks, reserve = draw(st.sampled_from([0, 4, 5])), draw(st.sampled_from([0, 32, 256]))
    after, sliding = draw(st.sampled_from([0, 0, 1, 300])), draw(st.booleans())
    return CacheSpec(
        key=key,
        value=value,
        sinks=sinks,
        reserve=reserve,
        quantize_after=after,
        sliding=sliding,
        layers=tuple(overrides.values()),
    )


@settings(max_examples=300, deadline=None)
@given(spec=cache_specs())
def test_random_specs_round_trip(spec: CacheSpec) -> None:
    text = str(spec)
    assert re.fullmatch(r"[a-z0-9.@+-]+", text)
    assert parse_spec(text) == spec
    assert str(parse_spec(text)) == text


@settings(max_examples=200, deadline=None)
@given(first=cache_specs(layers=False), second=cache_specs(layers=False))
def test_different_specs_print_differently(first: CacheSpec, second: CacheSpec) -> None:
    assert (str(first) == str(second)) == (first == second)


# --- what strings mean ---
def test_defaults() -> None:
    spec = parse_spec("int4-head")
    assert (spec.sinks, spec.reserve, spec.key.recent, spec.key.flush) == (4, 32, 64, 32)
    assert spec.key == spec.value
    assert (spec.key.codec, spec.key.sharing, spec.key.group) == ("int4", "token-head", None)
    assert spec.key.options == AffineOptions(sym=False, metadata="fp16", near=False)
    assert (spec.key.bits, spec.is_raw, spec.key.maps, spec.key.fit_tokens) == (4, False, (), 0)
    assert parse_spec("int8-channel").key.group == 32


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "exact"])
def test_raw_floats_have_no_window(name: str) -> None:
    spec = parse_spec(name, sinks=9, recent=99, flush=77)
    assert (spec.sinks, spec.key.recent, spec.key.flush, spec.is_raw) == (0, 0, 1, True)


def test_whole_format_options() -> None:
    spec = parse_spec("int4-head+q500+sliding")
    assert (spec.quantize_after, spec.sliding) == (500, True)
    assert (parse_spec("int4-head").quantize_after, parse_spec("int4-head").sliding) == (0, False)


def test_example_from_the_design() -> None:
    spec = parse_spec("k.int8-channel@g32+v.int4-head+r128+s4")
    assert (spec.key.codec, spec.key.sharing, spec.key.group, spec.key.recent) == ("int8", "channel", 32, 128)
    assert (spec.value.codec, spec.value.sharing, spec.value.group, spec.value.recent) == (
        "int4",
        "token-head",
        None,
        128,
    )
    assert spec.sinks == 4


def test_window_after_its_own_tensor() -> None:
    spec = parse_spec("k.int2-channel@g32+r0+f128+v.int2-token@g32+r128+f1+s0")
    assert (spec.key.recent, spec.key.flush, spec.value.recent, spec.value.flush, spec.sinks) == (
        0,
        128,
        128,
        1,
        0,
    )


PRESET_TENSORS = {
    "fp32": (("fp32", None, None), ("fp32", None, None)),
    "fp16": (("fp16", None, None), ("fp16", None, None)),
    "bf16": (("bf16", None, None), ("bf16", None, None)),
    "exact": (("exact", None, None), ("exact", None, None)),
    "int8-head": (("int8", "token-head", None), ("int8", "token-head", None)),
    "int4-head": (("int4", "token-head", None), ("int4", "token-head", None)),
    "fp8-e4m3": (("fp8-e4m3", "token-head", None), ("fp8-e4m3", "token-head", None)),
    "int8-channel": (("int8", "channel", 32), ("int8", "channel", 32)),
    "int4-channel": (("int4", "channel", 32), ("int4", "token-head", None)),
    "k8v4": (("int8", "token-head", None), ("int4", "token-head", None)),
    "int8-g32": (("int8", "token", 32), ("int8", "token", 32)),
    "int4-g32": (("int4", "token", 32), ("int4", "token", 32)),
    "kivi-4": (("int4", "channel", 32), ("int4", "token", 32)),
    "kivi-2": (("int2", "channel", 32), ("int2", "token", 32)),
}


@pytest.mark.parametrize("name", list(PRESET_TENSORS))
def test_presets_mean_what_they_say(name: str) -> None:
    spec = presets()[name]
    found = tuple((t.codec, t.sharing, t.group) for t in (spec.key, spec.value))
    assert found == PRESET_TENSORS[name]


@pytest.mark.parametrize("name", ["kivi-2", "kivi-4"])
def test_published_presets_keep_their_policy(name: str) -> None:
    spec = parse_spec(name, sinks=7, recent=7, flush=7)
    assert spec == presets()[name]
    assert (spec.key.recent, spec.key.flush, spec.value.recent, spec.value.flush) == (0, 128, 128, 1)
    assert (spec.sinks, spec.key.options.near, spec.value.options.near) == (0, True, True)
    assert spec.published_policy
    assert not parse_spec("int4-head").published_policy


def test_defaults_of_a_sweep_fill_only_what_is_open() -> None:
    spec = parse_spec("int4-head+r16", sinks=1, recent=2, flush=3)
    assert (spec.sinks, spec.key.recent, spec.key.flush) == (1, 16, 3)
    assert parse_spec("int8-channel", flush=33).key.flush == 64  # rounded up to whole groups of 32


LAYERED = "int4-head+l0-1.fp16+l-1.int8-head"


def test_layer_overrides() -> None:
    spec = parse_spec(LAYERED)
    codecs = [spec.for_layer(i, 5).key.codec for i in range(5)]
    assert codecs == ["fp16", "fp16", "int4", "int4", "int8"]
    assert spec.for_layer(0, 5).sinks == 0 and spec.for_layer(2, 5).sinks == 4
    same = parse_spec("int4-head").with_layers({"0-1": "fp16", -1: "int8-head"})
    assert same == spec and parse_spec(str(spec)) == spec


def test_specs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        parse_spec("int4-head").sinks = 1  # type: ignore[misc]


# --- maps ---
CHAINS = {
    "int4-head@had": ("int4-head@had", "int4-head@had"),
    "int4-head@unrope.ctr": ("int4-head@unrope.ctr", "int4-head"),
    "int4-head@ctr.had": ("int4-head@ctr.had", "int4-head@had"),
    "int4-head@had.ctr": ("int4-head@had.ctr", "int4-head@had"),
    "int4-head@ctr.w128": ("int4-head@ctr.w128", "int4-head"),
    "int4-head@sym.bf16.near.norm": ("int4-head@sym.bf16.near.norm", "int4-head@sym.bf16.near.norm"),
    "int4-token@g16.smooth": ("int4-token@g16.smooth", "int4-token@g16"),
    "int8-channel@had": ("int8-channel@g32.had", "int8-channel@g32.had"),
    "int8-channel@g16.sym.had": ("int8-channel@g16.sym.had", "int8-channel@g16.sym.had"),
    "int4-channel@had": ("int4-channel@g32.had", "int4-head@had"),
    "int4-channel@g16.had": ("int4-channel@g16.had", "int4-head@had"),
    "int8-g32@norm": ("int8-token@g32.norm", "int8-token@g32.norm"),
    "k8v4@had": ("int8-head@had", "int4-head@had"),
    "k8v4@ctr.w64": ("int8-head@ctr.w64", "int4-head"),
    "fp8-e4m3@had": ("fp8-e4m3@had", "fp8-e4m3@had"),
}


@pytest.mark.parametrize("text", CHAINS)
def test_maps_said_once_go_where_they_are_maps(text: str) -> None:
    spec = parse_spec(text)
    key, value = CHAINS[text]
    assert (str(spec.key), str(spec.value)) == (key, value)
    assert spec == parse_spec(f"k.{key}+v.{value}")
    assert str(spec) == spec.name == text


def test_words_are_printed_in_one_order() -> None:
    assert str(parse_spec("int4-token@w64.ctr.near.had.g16.sym")) == "int4-token@g16.sym.near.ctr.had.w64"
    assert str(parse_spec("int4-head@ctr.w256")) == "int4-head@ctr"
    assert str(parse_spec("k.int4-head@ctr+v.int8-head@had")) == "k.int4-head@ctr+v.int8-head@had"
    assert str(parse_spec("int4-head+l0.k8v4@had")) == "int4-head+l0.k8v4@had"


@pytest.mark.parametrize("text", ["kivi-2@had", "kivi-4@unrope.ctr.w64"])
def test_published_schemes_keep_their_policy_with_maps(text: str) -> None:
    spec, preset = parse_spec(text, sinks=7, recent=7, flush=7), presets()[text.partition("@")[0]]
    bare = [replace(tensor, maps=(), fit_tokens=0) for tensor in (spec.key, spec.value)]
    assert (*bare, spec.sinks) == (preset.key, preset.value, 0)
    assert spec.key.maps == tuple(text.partition("@")[2].removesuffix(".w64").split("."))
    assert (spec.name, spec.published_policy) == (text, True)
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("int4-head@ctr", 4 + 256), ("int4-head@ctr.w2", 4 + 2), ("int4-head@ctr+s0", 256),
        ("int4-head@ctr.w8+q100", 101), ("int4-head@ctr+q100", 4 + 256),
    ],
)  # fmt: skip
def test_nothing_is_packed_before_the_tokens_are_there_that_state_is_fitted_on(text: str, first: int) -> None:
    """With sinks S and W tokens: b(n) = S while n < S + W."""
    spec = parse_spec(text + "+r0+f1")
    assert spec.key_window.packed(first - 1) == 0
    assert spec.key_window.packed(first) == first - spec.sinks
    assert spec.value_window.after == spec.quantize_after


class Hasty(Window):
    """Packs whatever there is."""

    def boundary(self, n: Length) -> Length:
        return self.sinks + (n - self.sinks) * (n > self.sinks)


def test_a_policy_that_packs_before_state_is_fitted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICIES, "known", dict(POLICIES.known))
    register_policy("hasty", Hasty)
    assert parse_spec("int4-head@had+p.hasty").key_window.packed(10) == 6
    with pytest.raises(
        QuantKVError, match="'hasty' packs tokens before the maps of int4-head@ctr are fitted"
    ):
        parse_spec("int4-head@ctr+p.hasty")
    with pytest.raises(QuantKVError, match="'hasty' packs tokens before q50 allows"):
        parse_spec("int4-head+q50+p.hasty")


def test_specs_are_pickled_with_their_words() -> None:
    spec = parse_spec("int4-head@sym.bf16.ctr.w64+l0.int8-head@near")
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("name", [*codec_names(), *map_words()])
def test_versions_are_where_rows_are_read(name: str) -> None:
    known = codec_family(name) if name in codec_names() else map_named(name)
    assert METHODS[name] == known.version


WRONG = {
    "int4": "int4-head",
    "int7-head": "7 is no legal number of bits; legal: 2, 3, 4, 5, 6, 8",
    "int0-head": "0 is no legal number of bits; legal: 2, 3, 4, 5, 6, 8",
    "int4-hed": "token-all",
    "int4-heads": "chunk",
    "int4-hade@g32": "chunk",
    "kivi2": "kivi-2",
    "int4-head@g32": "token",
    "int4-token@x": "gN",
    "int4-token@g1": "at least 2",
    "int4-token@g0": "at least 2",
    "int8-channel@g32+f48": "64",
    "int8-channel@g32+f0": "at least 1",
    "fp16@sym": "plain floats",
    "fp8-e4m3-head@sym": "legal: gN fp16 bf16 fp32",
    "fp8-e4m3-head@near": "legal: gN fp16 bf16 fp32",
    "int4-head+r1+r2": "twice",
    "int4-head+s1+s2": "twice",
    "int4-head+int8-head": "legal parts",
    "int4-head+z3": "legal parts",
    "int4-head+q1+q2": "twice",
    "k.int4-head": "keys and values",
    "v.int4-head": "keys and values",
    "k.int4-head+k.int8-head+v.int4-head": "twice",
    "INT4-head": "a-z",
    "int4 head": "a-z",
    "": "a-z",
    "k8v4@g32": "k8v4 takes no options but maps",
    "kivi-2@near": "kivi-2 takes no options but maps",
    "k8v4@hadd": "did you mean 'had'?",
    "int4-head@hda": "maps: ctr had norm normall rot smooth unrope; did you mean 'had'?",
    "int4-head@had.had": "says had twice",
    "int4-head@had.sym.sym": "says sym twice",
    "int4-head@fp16.bf16": "metadata is said twice",
    "int4-token@g16.g32": "says g16 and g32",
    "int4-head@": "has a word missing",
    "int4-head@had.": "has a word missing",
    "fp16@had": "fp16 stores plain floats and takes no maps: had",
    "k.exact@had+v.int4-head": "exact stores plain floats and takes no maps: had",
    "k.int4-head+v.int4-head@unrope.ctr": "unrope is a map of keys alone: values cannot take it",
    "k.int4-head@w64+v.int4-head@ctr": "w64 has no effect",
    "int4-head@w128": "no map of int4-head@w128 is fitted on tokens; those that are: ctr, smooth",
    "int4-head@had.w128": "w128 has no effect",
    "kivi-2@had.w128": "w128 has no effect",
    "int4-head@ctr.w1": "at least 2",
    "int4-head@ctr.w0": "at least 2",
    "int4-head@ctr.w8.w9": "says w8 and w9",
    "int4-head+l0.int4-head@had.had": "says had twice",
    "int4-head+lx.fp16": "legal parts",
}


@pytest.mark.parametrize("text", list(WRONG))
def test_wrong_strings_name_what_is_legal(text: str) -> None:
    with pytest.raises(QuantKVError) as caught:
        parse_spec(text)
    assert WRONG[text] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 4, ["int4-head"]])
def test_only_strings_and_specs_parse(value: object) -> None:
    with pytest.raises(QuantKVError):
        parse_spec(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings_, message",
    [
        ({"recent": -1}, "recent"),
        ({"flush": 0}, "flush"),
        ({"sharing": None}, "token-head"),
        ({"sharing": "per-channel"}, "token-head"),
        ({"options": AffineOptions(metadata="fp64")}, "bf16"),  # type: ignore[arg-type]
        ({"options": Float8Options()}, r"int4 takes options of AffineOptions \(sym fp16 bf16 fp32 near\)"),
        ({"maps": ("hadamard",)}, "unknown map 'hadamard'; legal: ctr, had"),
        ({"maps": "had"}, "maps must be a tuple of words"),
        ({"maps": ("ctr", "ctr")}, "the map ctr stands twice"),
        ({"maps": ("ctr",), "fit_tokens": 1}, "fit_tokens must be an integer of at least 2"),
        ({"fit_tokens": 8}, "w8 has no effect"),
        ({"recent": True}, "recent"),
        ({"codec": "int9"}, "int8"),
    ],
)
def test_wrong_tensor_specs(settings_: dict, message: str) -> None:
    with pytest.raises(QuantKVError, match=message):
        TensorSpec(**({"codec": "int4", "sharing": "token-head"} | settings_))


def test_overrides_do_not_nest() -> None:
    inner = parse_spec(LAYERED)
    with pytest.raises(QuantKVError, match="overrides of its own"):
        parse_spec("int4-head").with_layers({0: inner})


# bits + metadata bits / elements that share them at head_dim 64: token-head over 64, g32 over 32
BITS_64 = {
    "fp32": 32.0, "fp16": 16.0, "bf16": 16.0, "exact": 32.0,
    "int8-head": 8 + 32 / 64, "int4-head": 4 + 32 / 64, "fp8-e4m3": 8 + 16 / 64,
    "int8-channel": 8 + 32 / 32, "int4-channel": ((4 + 1.0) + (4 + 0.5)) / 2, "k8v4": 6 + 32 / 64,
    "int8-g32": 9.0, "int4-g32": 5.0, "kivi-4": 5.0, "kivi-2": 3.0,
}  # fmt: skip
BITS_OTHER = {
    "int4-head@sym": 4 + 16 / 64,
    "int3-token@g32": 3 + 1.0,
    "int5-head@fp32": 5 + 64 / 64,
    "int2-token-all": 2 + 32 / (3 * 64),
    "int6-chunk-head+f32": 6 + 32 / (32 * 64),
    "int8-chunk+f32": 8 + 32 / (32 * 3 * 64),
    "fp8-e5m2-channel@g64+f64": 8 + 16 / 64,
}


@pytest.mark.parametrize("name", list(BITS_64))
def test_bits_of_full_pages(name: str) -> None:
    bits = presets()[name].bits_packed(head_dim=64, num_key_value_heads=3, dtype=torch.float32)
    assert bits == pytest.approx(BITS_64[name], abs=1e-9)


@pytest.mark.parametrize("text", list(BITS_OTHER))
def test_bits_of_other_formats_within_alignment(text: str) -> None:
    """Fields start at multiples of 64 bytes, pages hold 4 KiB per head: alignment costs below 2 %."""
    bits = parse_spec(text).bits_packed(head_dim=64, num_key_value_heads=3, dtype=torch.float32)
    assert BITS_OTHER[text] <= bits <= BITS_OTHER[text] * 1.02


def test_presets_table_is_complete() -> None:
    assert set(BITS_64) == set(PRESET_TENSORS) == set(presets())
