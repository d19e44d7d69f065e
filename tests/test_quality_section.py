"""The quality section, from per-token scores with known answers."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from quantkv import parse_spec
from quantkv.errors import QuantKVError
from quantkv.instruments.divergence import TokenScores
from quantkv.measurements.checks import check_effect, check_exercised
from quantkv.measurements.quality.protocols import Protocol
from quantkv.measurements.quality.section import Bits, Tally, flagged, summarise
from quantkv.rows.row import build_row, strict_json


def scores(
    nll: list[float],
    nll_ref: list[float],
    kl: list[float],
    top1: list[bool],
    top5: list[float] | None = None,
) -> TokenScores:
    nats = (torch.tensor(x, dtype=torch.float64) for x in (nll, nll_ref, kl))
    shares = torch.tensor(top5 or [1.0] * len(nll), dtype=torch.float64)
    return TokenScores(*nats, torch.tensor(top1), shares)


def tally(*windows: TokenScores, packed_reads: tuple[float, ...] = ()) -> Tally:
    found = Tally()
    for i, window in enumerate(windows):
        read = packed_reads[i] if packed_reads else 0.8
        found.add(window, start=100 * i, packed_read=read, identical=False)
    return found


UNEQUAL = (
    scores([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [0.1, 0.2, 0.6], [True, True, False], [1.0, 0.8, 0.4]),
    scores([6.0], [2.0], [0.3], [True], [0.6]),
)


def test_unequal_windows_are_weighed_by_their_tokens():
    quality = summarise(tally(*UNEQUAL, packed_reads=(0.5, 0.9)))
    assert (quality.nll, quality.nll_ref, quality.delta_nll) == (12 / 4, 5 / 4, 7 / 4)
    assert quality.perplexity == pytest.approx(math.exp(3))
    assert quality.perplexity_ref == pytest.approx(math.exp(1.25))
    assert quality.ppl_ratio == pytest.approx(math.exp(1.75))
    assert quality.kl_mean == pytest.approx(1.2 / 4)
    assert (quality.kl_median, quality.kl_max) == (pytest.approx(0.25), 0.6)
    assert quality.top1_agreement == 3 / 4
    assert quality.top5_agreement == pytest.approx(2.8 / 4)
    assert quality.packed_read_fraction == pytest.approx((3 * 0.5 + 0.9) / 4)
    assert quality.tokens_scored == 4
    assert (quality.delta_nll_low, quality.kl_high, quality.kl_p99) == (None, None, None)


def test_the_numbers_of_one_window_have_no_intervals():
    quality = summarise(tally(UNEQUAL[0]))
    assert (quality.nll, quality.delta_nll, quality.kl_mean) == (2.0, 1.0, pytest.approx(0.3))
    intervals = (quality.delta_nll_low, quality.delta_nll_high, quality.kl_low, quality.kl_high)
    assert intervals == (None, None, None, None)


def test_median_and_maximum_are_over_tokens_not_windows():
    """Of 0.1 to 0.4 and, in another window, 2.0 the middle is 0.3; the 99th percentile needs 5000 tokens."""
    windows = (
        scores([1.0] * 4, [1.0] * 4, [0.1, 0.4, 0.2, 0.3], [True] * 4),
        scores([1.0], [1.0], [2.0], [True]),
    )
    quality = summarise(tally(*windows))
    assert (quality.kl_median, quality.kl_max, quality.kl_p99) == (0.3, 2.0, None)
    ramp = summarise(
        tally(scores([1.0] * 5001, [1.0] * 5001, [float(i) for i in range(5001)], [True] * 5001))
    )
    assert ramp.kl_p99 == 4950.0


@pytest.mark.parametrize(
    "nll, nll_ref, delta, ratio",
    [
        ([1.0, math.inf], [1.0, 1.0], math.inf, math.inf),
        ([1.0, 1.0], [1.0, math.inf], -math.inf, 0.0),
        ([1.0, math.inf], [1.0, math.inf], math.nan, math.nan),
    ],
)
def test_a_token_of_probability_zero_is_neither_hidden_nor_given_an_interval(nll, nll_ref, delta, ratio):
    window = scores(nll, nll_ref, [0.1, 0.1], [True, True])
    quality = summarise(tally(*[window] * 9))
    assert quality.delta_nll == pytest.approx(delta, nan_ok=True)
    assert quality.ppl_ratio == pytest.approx(ratio, nan_ok=True)
    assert quality.delta_nll_low is None and quality.kl_low is not None
    assert (quality.perplexity == math.inf) is (math.inf in nll)


def test_windows_carry_what_pairing_two_runs_needs():
    first, second = summarise(tally(*UNEQUAL)).windows
    sums = {"sum_nll": 6.0, "sum_nll_ref": 2.0, "sum_kl": 0.3, "n_top1": 1, "sum_top5": 0.6}
    assert second == {"start": 100, "n": 1} | sums
    assert (first["start"], first["n"], first["n_top1"]) == (0, 3, 2)


def test_delta_nll_is_paired():
    """Windows far apart in NLL but with one and the same gap: the interval has no width."""
    windows = [scores([10.0 * i + 0.5] * 2, [10.0 * i] * 2, [0.1] * 2, [True] * 2) for i in range(9)]
    quality = summarise(tally(*windows))
    assert quality.delta_nll_low == pytest.approx(0.5) == quality.delta_nll_high


def test_tokens_are_kept_for_a_sidecar_file():
    tokens = tally(*UNEQUAL).tokens()
    assert tokens["nll"].tolist() == [1.0, 2.0, 3.0, 6.0]
    assert tokens["window"].tolist() == [0, 0, 0, 1]


def test_an_infinite_perplexity_is_null_in_a_row():
    quality = summarise(tally(scores([800.0], [1.0], [math.inf], [False])))
    row = build_row("quality", {}, {}, {}, quality.to_dict(), {})
    assert row["quality"]["perplexity"] is None and row["quality"]["kl_mean"] is None
    assert row["quality"]["nll"] == 800.0
    json.dumps(row, allow_nan=False)
    assert "NLL or KL is not finite with this format" in flagged(quality, None, Protocol()).flags


@pytest.mark.parametrize(
    "change, spec, flag",
    [
        ({"packed": 0.49}, "int4-head", "packed pairs are only 49.0%"),
        ({"kl": 0.2}, "int4-head", "KL above 0.1 nats"),
        ({"top1": False}, "int4-head", "top-1 agreement below 80%"),
        ({"n": 48}, "int4-head", "48 scored tokens are no multiple of the flush of 32"),
        ({"n": 64}, "kivi-2", "64 scored tokens are no multiple of the flush of 128"),
        ({"kl": 1e-12}, "int8-head", "KL below the floor"),
    ],
)
def test_what_a_reader_must_not_miss_is_flagged(change, spec, flag):
    good = {"n": 64, "kl": 0.01, "top1": True, "packed": 0.9}
    for settings, expected in ((good | change, [flag]), (good | {"n": 128}, [])):
        n = settings["n"]
        window = scores([1.0] * n, [1.0] * n, [settings["kl"]] * n, [settings["top1"]] * n)
        quality = summarise(tally(window, packed_reads=(settings["packed"],)), floor_path_kl=1e-10)
        flags = flagged(quality, parse_spec(spec), Protocol()).flags
        assert len(flags) == len(expected) and all(map(str.startswith, flags, expected))


def test_a_number_that_read_no_packed_value_is_an_error():
    check_exercised("int4-head", 0.01, 64)
    for nothing in (0.0, math.nan):
        with pytest.raises(QuantKVError, match="no scored token reads a packed value at context 64"):
            check_exercised("int4-head", nothing, 64)


def test_a_lossy_format_that_changes_nothing_is_an_error():
    check_effect("fp32", parse_spec("fp32"), identical=True)
    check_effect("identity", lambda x: x, identical=True)
    check_effect("int8-head", parse_spec("int8-head"), identical=False)
    with pytest.raises(QuantKVError, match="changed no logit"):
        check_effect("int8-head", parse_spec("int8-head"), identical=True)


def test_bits_stand_in_the_section_beside_the_scores():
    quality = summarise(tally(*UNEQUAL), bits=Bits(bits_packed=4.5, cache_bytes=17)).to_dict()
    assert (quality["bits_packed"], quality["bits_cache"], quality["cache_bytes"]) == (4.5, None, 17)


def test_rows_say_what_ran_otherwise_than_asked():
    row = build_row(
        "quality",
        {"spec": "int4-head", "attn": "quantkv"},
        {"spec": "int4-head", "attn": "sdpa", "notes": ["said before"]},
        {},
        None,
        {},
        status="failed",
        reason="why",
    )
    assert row["effective"]["notes"] == ["said before", "attn: asked for quantkv, ran sdpa"]
    assert (row["status"], row["reason"], row["quality"], row["speed"]) == ("failed", "why", None, None)
    with pytest.raises(ValueError, match="kind must be one of quality"):
        build_row("colour", {}, {}, {}, {}, {})


def test_the_baseline_runs_on_stock_attention_without_a_note():
    row = build_row("speed", {"attn": "quantkv"}, {"spec": "dynamic", "attn": "sdpa"}, {}, {}, {})
    assert row["effective"]["notes"] == []


def test_plain_unwraps_numpy_and_torch_scalars():
    value = {"a": torch.tensor(2), "b": (torch.tensor(math.nan), True), 3: SimpleNamespace(item=lambda: 1.5)}
    assert strict_json(value) == {"a": 2, "b": [None, True], "3": 1.5}
