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
from typing import Any

import torch
from torch import Tensor

from quantkv.codecs import Place, Stored, Tokens, codec_family, compute_dtype
from quantkv.codecs.options import Option, options_of, said_options
from quantkv.engines import Engine, engine_for
from quantkv.engines.choosing import REFERENCE
from quantkv.errors import QuantKVError
from quantkv.spec.specs import CacheSpec, Half, parse_spec
from quantkv.spec.tensors import GROUPED, TensorSpec, default_flush
from quantkv.store import TensorStore, page_layout
from quantkv.store.layout import tensor_nbytes

HEADS, HEAD_DIM, GROUP = 2, 32, 8
LENGTH = 192
CPU = torch.device("cpu")
AWKWARD = (0.0, 5.0, -3.0, 1e-30, 6e4, 1e30)


def check_codec(spec: str | CacheSpec) -> None:
    """Run every check on a format. Raises AssertionError."""
    parsed = parse_spec(spec)
    assert parse_spec(str(parsed)) == parsed, f"{parsed} does not survive its own short string"
    for half in parsed.halves:
        check_words(half.tensor.codec)
        check_fields(half)
        check_awkward_groups(half)
        check_rows_are_independent(half)
        check_store(half)
        check_engines(half)
    check_decode_exact(parsed)


def check_words(name: str) -> None:
    """Every sharing word and every option that the family takes changes what is stored: a row would name what
    its builder ignores."""
    family = codec_family(name)
    words = {word: _worded(name, word) for word in family.sharings}
    for one, other in itertools.combinations(words, 2):
        assert not _same(words[one], words[other]), f"{name} stores the same for {one} and {other}"
    plain = _worded(name, next(iter(words), None))
    for option in options_of(family.options):
        tried = [_with(plain, option, value) for value in option.others()]
        changed = [tensor for tensor in tried if tensor is not None]
        assert changed, f"{name} takes no {option.field} but {option.default}"
        for tensor in changed:
            said = ".".join(said_options(tensor.options))
            assert not _same(plain, tensor), f"{name} stores the same with and without {said}"


def _worded(name: str, word: str | None) -> TensorSpec:
    group, maps = (GROUP if word in GROUPED else None), (("norm",) if codec_family(name).unit else ())
    flush = default_flush(name, word, group)
    return TensorSpec(codec=name, sharing=word, group=group, maps=maps, flush=flush)


def _with(plain: TensorSpec, option: Option, value: Any) -> TensorSpec | None:
    """The same with another value of an option; None where the codec refuses this number."""
    try:
        options = replace(plain.options, **{option.field: value})
        flush = default_flush(plain.codec, plain.sharing, plain.group, options=options)
        return replace(plain, options=options, flush=flush)
    except QuantKVError:
        if option.is_number:
            return None
        raise


def _same(one: TensorSpec, other: TensorSpec) -> bool:
    length = 16 * math.lcm(one.build().group_tokens, other.build().group_tokens)
    x = torch.randn(1, HEADS, length, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    ways = [tensor.at(Place("key", HEADS, HEAD_DIM)) for tensor in (one, other)]
    first, second = (encoded(stored, x) | {"x": round_trip(stored, x)} for stored in ways)
    return first.keys() == second.keys() and all(
        first[field].dtype == second[field].dtype and torch.equal(first[field], second[field])
        for field in first
    )


def check_fields(half: Half) -> None:
    """Encoding gives exactly the declared fields, and decoding gives the shape and dtype asked for."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        stored = half.stored(HEADS, HEAD_DIM, dtype)
        length = _enough(stored)
        x = torch.randn(3, HEADS, length, HEAD_DIM).to(dtype)
        made = encoded(stored, x)
        assert {f.name for f in stored.fields} == set(made), f"declared {stored.fields}, made {sorted(made)}"
        for field in stored.fields:
            got = made[field.name]
            want = (3, field.heads, length // field.tokens, field.width)
            assert (tuple(got.shape), got.dtype) == (want, field.dtype), (
                f"{field.name}: {tuple(got.shape)} {got.dtype}, declared {want} {field.dtype}"
            )
            assert field.bits is None or int(got.max()) < 2**field.bits, (
                f"{field.name}: the code {int(got.max())} does not fit the declared {field.bits} bits"
            )
        decoded = round_trip(stored, x)
        assert (decoded.shape, decoded.dtype) == (x.shape, compute_dtype(dtype)), "decoding changes the shape"
        assert page_layout(stored).page_tokens % stored.group_tokens == 0


def check_awkward_groups(half: Half) -> None:
    """Constant groups, tiny and large ones, and one spike all come back finite."""
    stored = half.stored(HEADS, HEAD_DIM, torch.float32)
    for value in AWKWARD:
        x = torch.full((1, HEADS, _enough(stored), HEAD_DIM), value)
        spiked = x.clone()
        spiked[0, 0, 0, 0] = 6e4
        for given in (x, spiked):
            assert torch.isfinite(round_trip(stored, given)).all(), f"groups of {value} do not stay finite"


def check_rows_are_independent(half: Half) -> None:
    """What one row holds never changes another row's values."""
    stored = half.stored(HEADS, HEAD_DIM, torch.float32)
    x = torch.randn(2, HEADS, _enough(stored), HEAD_DIM)
    scaled = x.clone()
    scaled[1] *= 1000
    assert torch.equal(round_trip(stored, x)[0], round_trip(stored, scaled)[0]), "a row changes another row"


def check_store(half: Half) -> None:
    """Call sizes do not matter, packed values stay, the window is exact, bytes have their closed form,
    roll-back is exact."""
    length = LENGTH + half.stored(HEADS, HEAD_DIM, torch.float32).fit_tokens
    x = torch.randn(2, HEADS, length, HEAD_DIM)
    results = [_filled(half, x, calls) for calls in ([length], [48, 16, 7, length - 71], [1] * length)]
    reads = [store.view().read(0, length) for store in results]
    assert all(torch.equal(read, reads[0]) for read in reads), "the sizes of the calls change what is stored"
    store = results[0]
    back = length - store.window.reserve
    store.truncate(back)
    store.append(x[:, :, back:])
    assert torch.equal(store.view().read(0, length), reads[0]), "going back within the reserve leaves a trace"


def _store(half: Half, engine: Engine | None = None) -> TensorStore:
    stored = half.stored(HEADS, HEAD_DIM, torch.float32)
    window = replace(half.window, sinks=2, reserve=8)
    return TensorStore(stored, window, 2, CPU, engine or engine_for(stored, CPU)[0])


def _filled(half: Half, x: Tensor, calls: list[int]) -> TensorStore:
    store = _store(half)
    window, seen, packed = store.window, None, 0
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
        predicted = tensor_nbytes(store.stored, window, 2, store.length)
        assert store.nbytes == predicted, f"{store.nbytes} bytes held, {predicted} predicted"
    return store


def check_engines(half: Half) -> None:
    """Every engine that serves the format reads the numbers that its declaration gives."""
    stores = [_store(half), _store(half, REFERENCE)]
    x = torch.randn(2, HEADS, LENGTH + stores[0].stored.fit_tokens, HEAD_DIM)
    for store in stores:
        store.append(x)
    served, declared = (store.view().read(0, x.shape[2]) for store in stores)
    slack = 1e-6 * float(declared.abs().max())
    assert torch.allclose(served, declared, rtol=1e-6, atol=slack if stores[0].stored.steps else 0.0), (
        f"{stores[0].pages.engine.name} reads other numbers than are declared"
    )


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
    waits = max(half.window.after for half in spec.halves)
    length, prefill = length + waits, prefill + waits
    ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), fused_attention(model):
        cache = {cache_argument(model): QuantizedCache(model.config, spec)}
        sizes = [prefill] + [1] * (length - prefill)
        literal = torch.cat([model(part, **cache).logits for part in ids.split(sizes, 1)], 1).log_softmax(-1)
    with torch.no_grad(), simulate(model, spec, prefill=prefill):
        at_once = model(ids).logits.log_softmax(-1)
    gap = (literal - at_once).abs().max().item()
    assert gap <= 1e-6, f"decoding token by token differs from the decode-exact pass by {gap:.1e}"


def tokens_of(stored: Stored, x: Tensor) -> Tokens:
    """Tokens `[N, H, T, D]` as the first ones of their rows, with the state that is fitted on them."""
    first = [0] * len(x)
    state = stored.fit(x[:, :, : stored.fit_tokens], first) if stored.fit_tokens else {}
    return Tokens(stored.place, first, state)


def encoded(stored: Stored, x: Tensor) -> dict[str, Tensor]:
    """`[N, H, T, D]` as fields."""
    return stored.encode(x, tokens_of(stored, x))


def round_trip(stored: Stored, x: Tensor) -> Tensor:
    """`[N, H, T, D]` encoded and decoded again."""
    tokens = tokens_of(stored, x)
    return stored.decode(stored.encode(x, tokens), tokens, compute_dtype(x.dtype))


def _enough(stored: Stored) -> int:
    """Tokens for a state and for a whole group."""
    together = math.lcm(stored.group_tokens, 4)
    return -(-max(1, stored.fit_tokens) // together) * together
