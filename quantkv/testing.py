"""The contract every format must keep, as checks that any project can run on its own codec.

    from quantkv.testing import check_codec
    check_codec("mycodec-head")

Each check raises AssertionError saying what was broken. They use the format's own policy with short
windows, random tensors and, for the last one, a tiny random model in float64.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from torch import Tensor

from quantkv.codecs import Codec, codec_family, compute_dtype
from quantkv.policy import Window
from quantkv.spec.specs import CacheSpec, parse_spec
from quantkv.spec.tensors import GROUPED, TensorSpec, default_flush
from quantkv.store import KEY_LANES, VALUE_LANES, Lanes, TensorStore, page_layout
from quantkv.store.layout import tensor_nbytes

HEADS, HEAD_DIM, GROUP = 2, 32, 8
CALLS = ([192], [48, 16, 7, 121], [1] * 192)
AWKWARD = (0.0, 5.0, -3.0, 1e-30, 6e4)


def check_codec(spec: str | CacheSpec) -> None:
    """Run every check on a format. Raises AssertionError."""
    parsed = parse_spec(spec)
    assert parse_spec(str(parsed)) == parsed, f"{parsed} does not survive its own short string"
    windows = parsed.key_window, parsed.value_window
    for tensor, window, lanes in zip((parsed.key, parsed.value), windows, (KEY_LANES, VALUE_LANES)):
        codec, window = tensor.build(), replace(window, sinks=2, reserve=8)
        check_words(tensor.codec)
        check_fields(codec)
        check_awkward_groups(codec)
        check_rows_are_independent(codec)
        check_store(tensor, window, lanes)
        check_kernel(tensor, window, lanes)
    check_decode_exact(parsed)


def check_words(name: str) -> None:
    """Every sharing word and every option that the family takes changes what is stored: a row would name what
    its builder ignores."""
    family = codec_family(name)
    words = {word: _worded(name, word) for word in family.sharings}
    for one, other in itertools.combinations(words, 2):
        assert not _same(words[one], words[other]), f"{name} stores the same for {one} and {other}"
    plain = _worded(name, next(iter(words), None))
    for option in set(family.options) - {plain.metadata}:
        changed = {"sym": {"symmetric": True}, "near": {"outward": False}}.get(option, {"metadata": option})
        assert not _same(plain, replace(plain, **changed)), (
            f"{name} stores the same with and without {option}"
        )


def _worded(name: str, word: str | None) -> TensorSpec:
    group = GROUP if word in GROUPED else None
    return TensorSpec(codec=name, sharing=word, group=group, flush=default_flush(name, word, group))


def _same(one: TensorSpec, other: TensorSpec) -> bool:
    codecs = one.build(), other.build()
    length = 16 * math.lcm(*(codec.group_tokens for codec in codecs))
    x = torch.randn(1, HEADS, length, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    first, second = (codec.encode(x) for codec in codecs)
    return first.keys() == second.keys() and all(
        first[field].dtype == second[field].dtype and torch.equal(first[field], second[field])
        for field in first
    )


def check_fields(codec: Codec) -> None:
    """Encoding gives exactly the declared fields, and decoding gives the shape and dtype asked for."""
    length = math.lcm(codec.group_tokens, 4)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(3, HEADS, length, HEAD_DIM).to(dtype)
        declared, encoded = codec.fields(HEADS, HEAD_DIM, dtype), codec.encode(x)
        assert {f.name for f in declared} == set(encoded), f"declared {declared}, encoded {sorted(encoded)}"
        for field in declared:
            got = encoded[field.name]
            want = (3, field.heads, length // field.tokens, field.width)
            assert (tuple(got.shape), got.dtype) == (want, field.dtype), (
                f"{field.name}: {tuple(got.shape)} {got.dtype}, declared {want} {field.dtype}"
            )
            assert field.bits is None or int(got.max()) < 2**field.bits, (
                f"{field.name}: the code {int(got.max())} does not fit the declared {field.bits} bits"
            )
        decoded = codec.decode(encoded, HEAD_DIM, compute_dtype(dtype))
        assert (decoded.shape, decoded.dtype) == (x.shape, compute_dtype(dtype)), (
            "decode changes the shape or dtype"
        )
    for lanes in (KEY_LANES, VALUE_LANES):
        layout = page_layout(codec, HEADS, HEAD_DIM, torch.float32, lanes)
        assert layout.page_tokens % codec.group_tokens == 0


def check_awkward_groups(codec: Codec) -> None:
    """Constant groups, tiny and large ones, and one spike all come back finite."""
    for value in AWKWARD:
        x = torch.full((1, HEADS, codec.group_tokens, HEAD_DIM), value)
        spiked = x.clone()
        spiked[0, 0, 0, 0] = 6e4
        for given in (x, spiked):
            assert torch.isfinite(round_trip(codec, given)).all(), f"groups of {value} do not stay finite"


def check_rows_are_independent(codec: Codec) -> None:
    """What one row holds never changes another row's values."""
    x = torch.randn(2, HEADS, codec.group_tokens, HEAD_DIM)
    scaled = x.clone()
    scaled[1] *= 1000
    assert torch.equal(round_trip(codec, x)[0], round_trip(codec, scaled)[0]), "a row changes another row"


def check_store(tensor: TensorSpec, window: Window, lanes: Lanes = KEY_LANES) -> None:
    """Call sizes do not matter, packed values stay, the window is exact, bytes have their closed form,
    roll-back is exact."""
    x = torch.randn(2, HEADS, 192, HEAD_DIM)
    results = [_filled(tensor, window, lanes, x, calls) for calls in CALLS]
    reads = [store.view().read(0, 192) for store in results]
    assert all(torch.equal(read, reads[0]) for read in reads), "the sizes of the calls change what is stored"
    store = results[0]
    store.truncate(192 - window.reserve)
    store.append(x[:, :, 192 - window.reserve :])
    assert torch.equal(store.view().read(0, 192), reads[0]), "going back within the reserve leaves a trace"


def _store(tensor: TensorSpec, window: Window, lanes: Lanes, x: Tensor) -> TensorStore:
    return TensorStore(tensor.build(), window, (2, HEADS, HEAD_DIM), x.dtype, x.device, lanes=lanes)


def _filled(tensor: TensorSpec, window: Window, lanes: Lanes, x: Tensor, calls: list[int]) -> TensorStore:
    store = _store(tensor, window, lanes, x)
    seen, packed = None, 0
    for size in calls:
        start = store.length
        view = store.append(x[:, :, start : start + size])
        read = view.read(0, store.length)
        first = window.boundary(start)
        assert torch.equal(read[:, :, first:], x[:, :, first : store.length]), (
            "the recent window is not exact"
        )
        assert seen is None or torch.equal(read[:, :, :packed], seen[:, :, :packed]), "a packed value changed"
        seen, packed = read, min(first, start)
        predicted = tensor_nbytes(store.codec, window, store.shape, x.dtype, lanes, store.length)
        assert store.nbytes == predicted, f"{store.nbytes} bytes held, {predicted} predicted"
    return store


def check_kernel(tensor: TensorSpec, window: Window, lanes: Lanes) -> None:
    """Where the codec tells native kernels how to read its fields, they read what `decode` gives."""
    x = torch.randn(2, HEADS, 192, HEAD_DIM)
    stores = [_store(tensor, window, lanes, x) for _ in range(2)]
    stores[1].pages.format = None  # the codec's own encode and decode
    for store in stores:
        store.append(x)
    by_kernel, by_codec = (store.view().read(0, 192) for store in stores)
    same = torch.allclose(by_kernel, by_codec, rtol=1e-6, atol=0.0)
    assert same, "native kernels read other numbers than decode gives"


def check_decode_exact(spec: CacheSpec, length: int = 96, prefill: int = 48) -> None:
    """One decode-exact pass equals decoding token by token through the real cache, within 1e-6 in
    log-probability (float64)."""
    from quantkv.cache.hooks import fused_attention
    from quantkv.cache.names import cache_argument
    from quantkv.cache.quantized import QuantizedCache
    from quantkv.decode_exact.simulate import simulate
    from quantkv.models.loading import load_model

    model, _ = load_model("random-llama", dtype="float64")
    key, value = (replace(tensor, recent=min(tensor.recent, 8)) for tensor in (spec.key, spec.value))
    spec = replace(spec, key=key, value=value)
    ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), fused_attention(model):
        cache = {cache_argument(model): QuantizedCache(model.config, spec)}
        sizes = [prefill] + [1] * (length - prefill)
        literal = torch.cat([model(part, **cache).logits for part in ids.split(sizes, 1)], 1).log_softmax(-1)
    with torch.no_grad(), simulate(model, spec, prefill=prefill):
        at_once = model(ids).logits.log_softmax(-1)
    gap = (literal - at_once).abs().max().item()
    assert gap <= 1e-6, f"decoding token by token differs from the decode-exact pass by {gap:.1e}"


def round_trip(codec: Codec, x: Tensor) -> Tensor:
    """`[N, H, T, D]` encoded and decoded again."""
    return codec.decode(codec.encode(x), x.shape[-1], compute_dtype(x.dtype))
