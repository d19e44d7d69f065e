"""Numbers beyond the range of what they are stored in: counted, and said."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from stores import encode
from torch import Tensor

from quantkv import QuantizedCache, cache_argument, check, evaluate, load_model, parse_spec
from quantkv.codecs import saturated
from quantkv.data import Text, bos_id, tokenize
from quantkv.instruments.windows import make_windows
from quantkv.measurements.running import effective

BEYOND = [
    # spec, the largest value, scales and zeros at the end of their range for 2 heads of 3 tokens
    ("int4-head+r0+f1", 6e4, 0),
    ("int4-head+r0+f1", 7e4, 6),  # zeros of -7e4; the range over 15 steps fits
    ("int4-head+r0+f1", 1e6, 12),  # and scales of 2e6 / 15
    ("int4-head@sym+r0+f1", 7e4, 6),
    ("int4-head@sym+r0+f1", 6e4, 0),
    ("int4-head@bf16+r0+f1", 1e6, 0),
    ("int4-head@fp32+r0+f1", 1e30, 0),
    ("int4-token-all+r0+f1", 7e4, 3),
    ("fp8-e4m3-head+r0+f1", 7e4, 6),
    ("fp8-e4m3-head@bf16+r0+f1", 7e4, 0),
    ("fp16", 7e4, 2 * 3 * 32),
    ("fp16", 6e4, 0),
    ("bf16", 1e30, 0),
    ("exact", 1e30, 0),
]


def values(largest: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Two heads of three tokens, each from minus to plus the largest."""
    signs = torch.tensor([1.0, -1.0]).repeat(16)
    return (signs * largest).to(dtype).expand(1, 2, 3, 32).clone()


@pytest.mark.parametrize(("spec", "largest", "count"), BEYOND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_dtype_cannot_hold_is_counted(
    spec: str, largest: float, count: int, dtype: torch.dtype
) -> None:
    x = values(largest, dtype)
    assert saturated(x, encode(parse_spec(spec).key, x)) == count


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_counts(bad: float) -> None:
    x = values(1.0)
    x[0, 1, 2, 5] = bad
    assert saturated(x, encode(parse_spec("int4-head@sym").key, x)) == 1
    assert saturated(x, encode(parse_spec("exact").key, x)) == 0  # comes back as it was given


# --- a cache counts, and says so once ---
def large_values(factor: float, dtype: str = "bfloat16") -> Any:
    """A model whose values are `factor` times those of the usual one, as are those of some real models."""
    model, _ = load_model("random-llama", dtype=dtype, attn="quantkv")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight *= factor
            layer.self_attn.o_proj.weight /= factor
    return model


def fill(cache: QuantizedCache, x: Tensor) -> list[str]:
    """Append to both layers, a prompt and token by token; what is said on the terminal."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for part in x.split([40, *[1] * (x.shape[2] - 40)], 2):
            for layer in range(2):
                cache.update(part / x.abs().max(), part, layer)
    return [str(warning.message) for warning in said]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_cache_counts_and_says_it_once(dtype: torch.dtype) -> None:
    model = large_values(1.0)
    x = torch.full((1, 2, 200, 16), -1e5, dtype=dtype)
    x[..., ::2] = 1e5
    cache = QuantizedCache(model.config, "int4-head+s4+r4+f1+k0")
    (text,) = fill(cache, x)
    assert "@bf16" in text and "saturated" in text and str(cache.spec) in text
    zeros = 2 * (200 - 4 - 4)  # of each head and packed token; a range of 2e5 over 15 steps fits
    assert cache.describe()["saturated"].tolist() == [zeros, zeros]
    assert cache.saturated == 2 * zeros
    assert cache.fork().saturated == copy.deepcopy(cache).saturated == 2 * zeros
    cache.reset()
    assert cache.saturated == 0


@pytest.mark.parametrize("spec", ["int4-head@bf16", "int8-channel@bf16", "bf16", "exact"])
def test_what_fits_is_not_said(spec: str) -> None:
    cache = QuantizedCache(large_values(1.0).config, spec)
    assert not fill(cache, 1e5 * torch.randn(2, 2, 150, 16, dtype=torch.bfloat16))
    assert cache.saturated == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_said(bad: float) -> None:
    cache, x = (
        QuantizedCache(large_values(1.0).config, "int4-head@bf16+s0+r0+f1+k0"),
        torch.randn(1, 2, 60, 16),
    )
    x[0, 1, 50, 3] = bad
    assert len(fill(cache, x)) == 1
    assert cache.saturated > 0


def test_a_model_with_large_values_is_told_to_take_wider_scales() -> None:
    model, ids = (
        large_values(4e6),
        torch.randint(0, 256, (1, 150), generator=torch.Generator().manual_seed(0)),
    )
    counts = {}
    for spec in ("int4-head", "int4-head@bf16"):
        cache = QuantizedCache(model.config, spec)
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for part in ids.split([100, *[1] * 50], 1):
                model(part, **{cache_argument(model): cache})
        counts[spec] = (cache.saturated > 0, sum("saturated" in str(w.message) for w in said))
    assert counts == {"int4-head": (True, 1), "int4-head@bf16": (False, 0)}


def test_rows_of_measurements_carry_the_count() -> None:
    model = large_values(4e6, "float32")
    cache = QuantizedCache(model.config, "int4-head")
    assert effective(model, parse_spec("int4-head"), cache)["saturated"] == 0
    with warnings.catch_warnings(action="ignore"):
        cache.update(torch.randn(1, 2, 200, 16), torch.full((1, 2, 200, 16), -1e5), 0)
    assert effective(model, parse_spec("int4-head"), cache)["saturated"] == cache.saturated > 0


# --- rows of the decode-exact pass ---
TEXT = Text("words", "the quick brown fox jumps over the lazy dog. " * 60, "f" * 64, "made up")
SHORT: dict[str, Any] = {"text": TEXT, "windows": 1, "score": 16}


def said_of(work: Any) -> tuple[Any, list[str]]:
    """What `work` gives, and what it says of saturation."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = work()
    return found, [str(w.message) for w in said if "saturated" in str(w.message)]


def test_a_quality_row_counts_what_decoding_counts_and_says_it_once() -> None:
    """One window of 96 + 16 + 1 tokens: the last query finds packed what 111 tokens before it left."""
    spec, model = "int4-head+r8+f4+s2+k0", large_values(4e6)
    tok = load_model("random-llama")[1]
    formats = [spec, "int4-head@bf16+r8+f4"]
    evaluation, said = said_of(lambda: evaluate(model, tok, formats, contexts=[96], **SHORT))
    own, wide = evaluation.rows
    plan = make_windows(tokenize(TEXT, tok), span=96, score=16, windows=1, bos_id=bos_id(tok))
    cache = QuantizedCache(model.config, spec)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for part in plan.at(96)[0][None, :111].split([96, *[1] * 15], 1):
            model(part, **{cache_argument(model): cache})
    assert own["effective"]["saturated"] == cache.saturated > 0
    assert any(f"{cache.saturated} scales, zeros or values" in flag for flag in own["quality"]["flags"])
    assert wide["effective"]["saturated"] == 0
    assert not any("@bf16" in flag for flag in wide["quality"]["flags"])
    assert len(said) == 1 and "@bf16" in said[0] and spec in said[0]


def test_a_function_has_no_scales_to_count() -> None:
    model, tok = load_model("random-llama")
    (row,) = evaluate(model, tok, {"half": lambda x: x.half().to(x.dtype)}, contexts=[128], **SHORT).rows
    assert row["effective"]["saturated"] is None


def test_check_names_it_as_a_reason_where_the_format_hurts() -> None:
    model, tok = large_values(4e6, "float32"), load_model("random-llama")[1]
    options: dict[str, Any] = {"context": 96, **SHORT}
    found, _ = said_of(lambda: check(model, tok, ["int4-head+r8+f4", "int8-head@bf16+r8+f4"], **options))
    hurt, wide = found.formats
    assert hurt.hurts and "beyond the range" in hurt.reasons[0] and "@bf16" in hurt.reasons[0]
    assert not any("beyond the range" in reason for reason in wide.reasons)
