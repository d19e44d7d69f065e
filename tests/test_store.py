"""The store against a naive list of tokens, and its promises about groups, calls and rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from default_specs import A_FEW, PRESETS, SMALL, small_preset
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import DIM, HEADS, encode, everything, feed, new_store, round_trip, same_bits, used_fields
from torch import Tensor

from quantkv import CacheSpec, QuantKVError, parse_spec, presets


# --- a model of the store that keeps lists ---
@dataclass
class NaiveRow:
    """One row, token by token: exact values, packed ones, and from where on exact ones are held."""

    spec: CacheSpec
    pad: int
    exact: list[Tensor] = field(default_factory=list)
    decoded: list[Tensor] = field(default_factory=list)
    held_from: int = 0

    def boundary(self, n: int) -> int:
        """Packed tokens after the sinks: a chunk leaves whenever the window and a chunk are full."""
        packed, key = 0, self.spec.key
        real = n - self.pad
        while real > self.spec.quantize_after and real - self.spec.sinks - packed >= key.recent + key.flush:
            packed += key.flush
        return packed

    @property
    def first(self) -> int:
        return self.pad + self.spec.sinks

    def visible(self) -> list[Tensor]:
        zeros = [torch.zeros(HEADS, DIM)] * min(self.pad, len(self.exact))
        start, end = self.first, self.first + len(self.decoded)
        return [*zeros, *self.exact[self.pad : start], *self.decoded, *self.exact[max(end, self.pad) :]][
            : len(self.exact)
        ]

    def append(self, tokens: Tensor) -> None:
        self.exact += list(tokens.unbind(1))
        n = len(self.exact)
        while len(self.decoded) < self.boundary(n):
            at = self.first + len(self.decoded)
            chunk = torch.stack(self.exact[at : at + self.spec.key.flush], 1)[None]
            self.decoded += list(round_trip(self.spec.key, chunk)[0].unbind(1))
        self.held_from = max(self.held_from, self.boundary(n - self.spec.reserve))

    def truncate(self, n: int) -> bool:
        """Whether exact values had to be replaced by decoded ones."""
        keep = self.boundary(n)
        lost = range(keep, min(n - self.first, self.held_from, len(self.decoded)))
        for i in lost:
            self.exact[self.first + i] = self.decoded[i]
        self.exact, self.decoded = self.exact[:n], self.decoded[:keep]
        self.held_from = min(self.held_from, keep)
        return len(lost) > 0

    def copy(self) -> NaiveRow:
        return NaiveRow(self.spec, self.pad, list(self.exact), list(self.decoded), self.held_from)


NAIVE_SPECS = [
    "int4-head+r8+f16+s2+k8",
    "int3-channel@g16+r8+f16+s2+k8",
    "int6-chunk+r3+f5+s0+k4",
    "int2-token@g16+r16+f1+s3+k8",
    "int8-channel@g16+r0+f32+s0+k0",
    "fp8-e4m3+r0+f1+s1+k2",
    "exact+r2+f3+s2+k5",
    "int4-head+r8+f16+s2+k8+q60",
    "int8-channel@g16+r0+f16+s0+k3+q33",
]
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40)),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("crop"), st.integers(0, 9)),
    st.tuples(st.just("crop"), st.integers(0, 150)),
    st.tuples(st.just("select"), st.lists(st.integers(0, 5), min_size=1, max_size=3)),
)


@settings(max_examples=120, deadline=None)
@given(
    text=st.sampled_from(NAIVE_SPECS),
    pads=st.lists(st.sampled_from([0, 0, 3, 7]), min_size=1, max_size=3),
    operations=st.lists(OPERATIONS, min_size=1, max_size=14),
    seed=st.integers(0, 2**16),
)
def test_store_equals_lists(text: str, pads: list[int], operations: list, seed: int) -> None:
    spec, generator = parse_spec(text), torch.Generator().manual_seed(seed)
    store, rows = new_store(spec, rows=len(pads), pads=pads), [NaiveRow(spec, pad) for pad in pads]
    start = max(pads) + 1  # rows begin with at least one real token
    for name, argument in [("append", start), *operations]:
        if name == "append":
            x = torch.randn(len(rows), HEADS, argument, DIM, generator=generator)
            before = [row.visible() + list(x[i].unbind(1)) for i, row in enumerate(rows)]
            seen = store.append(x).read(0, store.length)
            for i, row in enumerate(rows):
                row.append(x[i])
                assert torch.equal(seen[i, :, row.pad :], torch.stack(before[i], 1)[:, row.pad :])
        elif name == "crop":
            length = max(start, store.length - argument)
            deep = [row.truncate(length) for row in rows]
            assert store.truncate(length) == sum(deep)
        else:
            chosen = [i % len(rows) for i in argument]
            store.select(chosen)
            rows = [rows[i].copy() for i in chosen]
        expected = torch.stack([torch.stack(row.visible(), 1) for row in rows])
        assert torch.equal(everything(store), expected)
        assert store.pages.used == [len(row.decoded) for row in rows]


# --- a token is quantized once, wherever calls begin and end ---
def call_sizes(total: int) -> dict[str, list[int]]:
    sizes = {f"{n} at a time": [n] * (total // n) + [total % n] * (total % n > 0) for n in (48, 16, 7, 1)}
    return {"whole": [total], **sizes, "mixed": [48, 16, 7, 1] * (total // 72) + [1] * (total % 72)}


@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize(
    "text", [*PRESETS, *A_FEW, "int5-token-all+r8+f16+s2+k8", "int2-chunk-head+r8+f16+s2+k8"]
)
def test_calls_of_any_size_store_the_same_codes(text: str, which: str) -> None:
    total = 400 if text.startswith("kivi") else 192
    x = torch.randn(1, HEADS, total, DIM)
    stores = {}
    for name, sizes in call_sizes(total).items():
        stores[name] = new_store(parse_spec(text), which)
        feed(stores[name], x, sizes)
    first = stores["whole"]
    assert first.pages.used[0] > 0
    for name, store in stores.items():
        assert same_bits(used_fields(store), used_fields(first)), name
        assert torch.equal(everything(store), everything(first)), name


@pytest.mark.parametrize("text", [*PRESETS, *A_FEW])
def test_stored_codes_are_the_codec_s_codes_of_those_tokens(text: str) -> None:
    spec = small_preset(text) if text in presets() else parse_spec(text)
    x = torch.randn(1, HEADS, 300, DIM)
    store = new_store(spec)
    feed(store, x, [100, *[1] * 200])
    packed = store.pages.used[0]
    encoded = encode(spec.key, x[:, :, spec.sinks : spec.sinks + packed])
    assert packed > 0 and same_bits(used_fields(store), {n: f[0] for n, f in encoded.items()})


@pytest.mark.parametrize("text", [*PRESETS, *A_FEW])
def test_decoded_values_never_change_over_twenty_flushes(text: str) -> None:
    spec = small_preset(text, recent=4, flush=16) if text in presets() else parse_spec(text)
    store, seen, flushes = new_store(spec), torch.empty(1, HEADS, 0, DIM), 0
    while flushes < 20:
        store.append(torch.randn(1, HEADS, max(1, spec.key.flush // 2), DIM))
        packed = store.pages.used[0]
        now = store.view().read(spec.sinks, spec.sinks + packed)
        assert torch.equal(now[:, :, : seen.shape[2]], seen)
        flushes += packed > seen.shape[2]
        seen = now
    assert seen.shape[2] >= 20 * spec.key.flush


@pytest.mark.parametrize("text", SMALL)
def test_sinks_and_window_are_exact_at_every_length(text: str) -> None:
    spec = parse_spec(text)
    for which in ("key", "value"):
        tensor = getattr(spec, which)
        store, x = new_store(spec, which), torch.randn(1, HEADS, 90, DIM)
        for n in range(1, 91):
            store.append(x[:, :, n - 1 : n])
            now = everything(store)
            assert torch.equal(now[:, :, : spec.sinks], x[:, :, : min(n, spec.sinks)])
            recent = max(0, n - tensor.recent)
            assert torch.equal(now[:, :, recent:], x[:, :, recent:n])
            held = store.ring.buffer.shape[2] + store.sinks.buffer.shape[2]
            if n > spec.quantize_after + spec.reserve:
                assert held <= spec.sinks + tensor.recent + tensor.flush + spec.reserve


@pytest.mark.parametrize("text", [t for t in A_FEW if "int" in t.split("+")[0]])
def test_aged_tokens_are_really_quantized(text: str) -> None:
    """Groups of a single token would decode without error while being billed at the packed rate."""
    spec = parse_spec(text)
    store, x = new_store(spec), torch.randn(1, HEADS, 200, DIM)
    feed(store, x, [1] * 200)
    packed = slice(spec.sinks, spec.sinks + store.pages.used[0])
    error = (everything(store) - x)[:, :, packed].square().mean().sqrt()
    assert 0.5 < error * 2.0 ** (spec.key.bits or 0) < 2.5


# --- rows ---
@pytest.mark.parametrize("text", [*A_FEW, *PRESETS])
def test_rows_never_influence_each_other(text: str) -> None:
    spec = small_preset(text) if text in presets() else parse_spec(text)
    x = torch.randn(2, HEADS, 200, DIM)
    loud = x.clone()
    loud[1] *= 1000
    for which in ("key", "value"):
        plain, scaled = new_store(spec, which, rows=2), new_store(spec, which, rows=2)
        for store, data in ((plain, x), (scaled, loud)):
            feed(store, data, [70, 7, *[1] * 123])
        assert same_bits(used_fields(plain, 0), used_fields(scaled, 0))
        assert torch.equal(everything(plain)[0], everything(scaled)[0])
        assert not torch.equal(everything(plain)[1], everything(scaled)[1])


@pytest.mark.parametrize("pad", [1, 5, 33])
@pytest.mark.parametrize("text", [*A_FEW, *PRESETS])
def test_padded_row_stores_the_same_codes_as_alone(text: str, pad: int) -> None:
    spec = small_preset(text) if text in presets() else parse_spec(text)
    x = torch.randn(1, HEADS, 160, DIM)
    padded = torch.cat([torch.full((1, HEADS, pad, DIM), 77.0), x], 2)
    both = torch.cat([padded, torch.randn_like(padded)])
    alone, batch = new_store(spec), new_store(spec, rows=2, pads=[pad, 0])
    feed(alone, x, [60, *[1] * 100])
    feed(batch, both, [60 + pad, *[1] * 100])
    assert same_bits(used_fields(alone), used_fields(batch))
    assert torch.equal(everything(alone)[0], everything(batch)[0, :, pad:])
    assert not everything(batch)[0, :, :pad].any()


def test_selected_rows_go_their_own_ways() -> None:
    """Rows that share pages, one of them open, and then receive different tokens."""
    spec, x = parse_spec("int4-head+r0+f16+s0+k0"), torch.randn(1, HEADS, 240, DIM)
    store = new_store(spec)
    feed(store, x[:, :, :80], [80])
    store.select([0, 0, 0])
    tails = torch.randn(3, HEADS, 80, DIM)
    feed(store, tails, [16] * 5)
    for row in range(3):
        alone = new_store(spec)
        feed(alone, torch.cat([x[:, :, :80], tails[row : row + 1]], 2), [80, *[16] * 5])
        assert same_bits(used_fields(store, row), used_fields(alone))


def test_repeated_rows_share_their_full_pages() -> None:
    spec = parse_spec("int8-head+r0+f32+s0+k0")
    store = new_store(spec)
    store.append(torch.randn(1, HEADS, 1024, DIM))
    pages = store.pages.nbytes
    store.select([0] * 8)
    assert store.pages.nbytes == pages
    store.append(torch.randn(8, HEADS, 32, DIM))
    assert store.pages.nbytes < 3 * pages


@pytest.mark.parametrize("text", A_FEW)
def test_reading_beyond_the_tokens_is_refused(text: str) -> None:
    """Memory that nobody wrote is never shown, whether it lies in sinks, window or pages."""
    store = new_store(parse_spec(text))
    for length in (2, 60):
        feed(store, torch.randn(1, HEADS, length - store.length, DIM), [length - store.length])
        whole = store.view()
        for view, start, stop in ((whole, 0, length + 1), (whole, -1, 1), (whole.sliding(1), 0, length)):
            with pytest.raises(QuantKVError, match=f"of {length}"):
                view.read(start, stop)
        assert whole.read(0, length).isfinite().all()
