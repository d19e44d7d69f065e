"""The native engine on real stores: every default spec, shape and build beside attention in float64 over what
the store decodes to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from default_specs import DEFAULT_SPECS, SMALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_attention import causal_mask, naive

from quantkv import QuantKVError, parse_spec
from quantkv.cache.layer import QuantizedLayer
from quantkv.codecs.place import Place
from quantkv.engines import AttentionOptions, attend, native
from quantkv.engines.choosing import CPU

pytestmark = pytest.mark.skipif(native.isa() is None, reason="the native engine is not here")
ISAS = native.kernels().usable_isas() if native.isa() else []
HEAD_DIMS, RATIOS = [32, 40, 64, 80, 96, 128, 256], [1, 3, 4, 8]


@pytest.fixture(params=ISAS)
def isa(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(native, "isa", lambda: request.param)
    return request.param


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_engine_equals_attention_over_decoded_tokens(isa: str, head_dim: int, ratio: int) -> None:
    """Every default spec once; shapes differ from spec to spec."""
    generator = torch.Generator().manual_seed(head_dim * ratio)
    for text in specs_for(head_dim):
        pads = [[0], [0, 3], [5, 0, 2]][int(torch.randint(3, (1,), generator=generator))]
        lengths = torch.randint(1, 40, (4,), generator=generator).tolist()
        lengths[0] += int(torch.randint(8, 300, (1,), generator=generator))
        queries = min(lengths[-1], [1, 1, 2, 16][int(torch.randint(4, (1,), generator=generator))])
        agree(text, pads, lengths, head_dim, ratio, queries)


def specs_for(head_dim: int) -> list[str]:
    """Default specs whose groups of channels divide head_dim."""
    return [text for text in DEFAULT_SPECS if fits(text, head_dim)]


def fits(text: str, head_dim: int) -> bool:
    spec = parse_spec(text)
    try:
        for tensor in (spec.key, spec.value):
            tensor.at(Place("key", 2, head_dim))
    except QuantKVError:
        return False
    return True


def agree(text: str, pads: list[int], lengths: list[int], head_dim: int, ratio: int, queries: int,
          dtype: torch.dtype = torch.float32) -> None:  # fmt: skip
    spec = parse_spec(text).for_layer(0, 2)
    layer = QuantizedLayer(spec, pads=lambda: pads)
    for length in lengths:
        keys, values = (torch.randn(len(pads), 2, length, head_dim).to(dtype) for _ in range(2))
        layer.update(keys, values)
    views = [store.view() for store in layer.stores]
    query = torch.randn(len(pads), 2 * ratio, queries, head_dim)
    stop = views[0].stop
    mask = causal_mask(queries, stop).repeat(len(pads), 1, 1, 1)
    for row, pad in enumerate(pads):
        mask[row, :, :, :pad] = float("-inf")
    assert all(store.pages.engine is CPU for store in layer.stores), f"{text} has no kernels"
    out = CPU.attend(query, *views, AttentionOptions(mask))
    decoded = [view.read(0, stop, torch.float64) for view in views]
    wide = mask.expand(-1, 2 * ratio, -1, -1)
    expected = naive(query, *decoded, wide, head_dim**-0.5, None, None)
    assert (out.double() - expected).abs().max() <= 2e-5 * decoded[1].abs().max(), (
        text,
        pads,
        lengths,
        queries,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("text", SMALL[::5])
def test_half_precision_tails_are_read_as_they_are(isa: str, text: str, dtype: torch.dtype) -> None:
    agree(text, [0, 4], [90, 7, 1, 30], 64, 3, 1, dtype)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing_but_rounding(threads: int, data: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        text = data.draw(st.sampled_from(SMALL))
        agree(
            text,
            data.draw(st.sampled_from([[0], [0, 3]])),
            [data.draw(st.integers(20, 1500)), 3, 1],
            32,
            3,
            1,
        )
    finally:
        torch.set_num_threads(before)


def test_long_queries_take_the_span_by_span_path() -> None:
    layer = QuantizedLayer(parse_spec("int4-head"))
    layer.update(torch.randn(1, 2, 300, 32), torch.randn(1, 2, 300, 32))
    views = [handle.kv for handle in layer.update(torch.randn(1, 2, 40, 32), torch.randn(1, 2, 40, 32))]
    query = torch.randn(1, 4, 40, 32)
    options = AttentionOptions(causal=True)
    expected = naive(
        query,
        *(v.read(0, 340) for v in views),
        causal_mask(40, 340).expand(1, 4, -1, -1),
        32**-0.5,
        None,
        None,
    )
    assert (attend(query, *views, options).double() - expected).abs().max() < 1e-5


def views_of(rows: int, tokens: int = 50) -> list[Any]:
    """Keys and values of 2 heads of 32 channels."""
    layer = QuantizedLayer(parse_spec("int4-head+r8+f8"))
    layer.update(torch.randn(rows, 2, tokens, 32), torch.randn(rows, 2, tokens, 32))
    return [store.view() for store in layer.stores]


@pytest.mark.parametrize("shape", [(1, 4, 1, 32), (3, 4, 1, 32), (2, 3, 1, 32), (2, 4, 1, 16), (2, 4, 1, 64)])
def test_a_query_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(QuantKVError, match="does not fit keys of 2 rows, 2 heads and 32 channels"):
        attend(torch.randn(shape), *views_of(2))


@pytest.mark.parametrize("shape", [(1, 1, 2, 49), (3, 1, 2, 50), (2, 2, 2, 50), (2, 4, 3, 50)])
def test_a_mask_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(QuantKVError, match=r"does not cover \[2, 4, 2\] queries and 50 keys"):
        attend(torch.randn(2, 4, 2, 32), *views_of(2), AttentionOptions(torch.ones(shape, dtype=torch.bool)))


def test_a_gradient_is_not_lost_without_a_word() -> None:
    query, views = torch.randn(1, 4, 1, 32, requires_grad=True), views_of(1)
    with pytest.raises(QuantKVError, match="carries no gradients"):
        attend(query, *views)
    with torch.no_grad():
        assert attend(query, *views).shape == (1, 4, 1, 32)


def test_a_build_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    native.isa.cache_clear()
    monkeypatch.setenv("QUANTKV_ISA", "v9")
    with pytest.raises(QuantKVError, match=r"legal: (v2|base)"):
        native.isa()
    native.isa.cache_clear()
