"""Speed: arithmetic on known step times, and the race on a tiny model (no assertion on real times)."""

import json

import pytest
import torch

from quantkv.errors import QuantKVError
from quantkv.instruments import timing
from quantkv.instruments.windows import feed_tokens
from quantkv.measurements.speed.run import speed_block
from quantkv.measurements.speed.section import Bandwidth, Timings, speed_section, top1_agreement
from quantkv.models import random_model

IDS = torch.randint(0, 256, (500,), generator=torch.Generator().manual_seed(7))
STEADY = Bandwidth(10.0, 10.5)


def timings(*rounds_ms: list[float], prefill: float = 2.0) -> Timings:
    rounds = [[ms / 1000 for ms in steps] for steps in rounds_ms]
    predicted = [[1] for steps in rounds_ms for _ in steps]
    return Timings(prefill=[prefill], first_token=[prefill + 0.5], rounds=rounds, predicted=predicted)


def section(lane, baseline, *, batch=1, bandwidth=STEADY, engine="native", fill="prefill"):
    return speed_section(
        lane, baseline, context=100, batch=batch, bandwidth=bandwidth, engine=engine, fill=fill
    )


def test_ratios_are_taken_round_by_round_and_first_steps_dropped():
    """Medians per round 3, 8 against 2, 2: the machine slowed down once, the ratio of each round stands."""
    lane, baseline = timings([90, 3, 3, 9], [70, 8, 8, 8]), timings([50, 2, 2, 2], [50, 2, 2, 7])
    found = section(lane, baseline, batch=2)
    assert found["ratio_to_baseline"] == pytest.approx((1.5 + 4) / 2)
    assert (found["ratio_p10"], found["ratio_p90"]) == (pytest.approx(1.75), pytest.approx(3.75))
    assert found["decode_ms_median"] == pytest.approx(8)
    assert found["decode_tokens_per_s"] == pytest.approx(2 * 1000 / 8)
    assert found["baseline_ms_median"] == pytest.approx(2)
    assert found["steps"] == 6
    assert (found["ratio_low"], found["ratio_high"]) == (None, None)


def test_the_interval_of_the_ratio_from_ten_rounds():
    lane = timings(*[[0, 1 + i, 1 + i] for i in range(10)])
    found = section(lane, timings(*[[0, 2, 2]] * 10))
    assert found["ratio_to_baseline"] == pytest.approx(5.5 / 2)
    assert (found["ratio_low"], found["ratio_high"]) == (pytest.approx(2 / 2), pytest.approx(9 / 2))


def test_prefill_and_first_token_stand_apart_from_decoding():
    found = section(timings([1, 1, 1], prefill=4.0), timings([1, 1, 1], prefill=2.0), batch=3)
    assert found["prefill_tokens_per_s"] == pytest.approx(3 * 100 / 4)
    assert found["time_to_first_token_ms"] == pytest.approx(4500)
    assert found["prefill_ratio_to_baseline"] == pytest.approx(2)


@pytest.mark.parametrize(
    "rounds, ms, tokens_per_s", [([], None, None), ([[5, 4]], 4, None), ([[5]], None, None)]
)
def test_no_or_one_decoded_token_has_no_rate(rounds, ms, tokens_per_s):
    found = section(timings(*rounds), timings(*rounds))
    assert found["decode_tokens_per_s"] is tokens_per_s
    assert found["decode_ms_median"] == (pytest.approx(ms) if ms else None)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "change, flag",
    [
        ({"engine": "reference"}, "reference engine: no speed claim"),
        ({"bandwidth": Bandwidth(10.0, 8.9)}, "memory bandwidth drifted by -11%"),
        ({"lane": timings([16, 10, 10], *[[1, 10, 10]] * 9)}, "first step took 1.6 times the median"),
        ({"lane": timings(*[[1, 10, 10]] * 9)}, "only 9 rounds"),
    ],
)
def test_what_spoils_a_speed_claim_is_flagged(change, flag):
    ten = timings(*[[1, 10, 10]] * 10)
    lane = change.pop("lane", ten)
    assert section(ten, ten)["flags"] == []
    assert section(lane, ten, **change)["flags"] == [flag]


def test_a_fast_arm_that_predicts_something_else_is_flagged():
    lane, baseline = timings(*[[1, 10, 10]] * 10), timings(*[[1, 10, 10]] * 10)
    lane.predicted = [[2]] * 30
    found = section(lane, baseline)
    assert found["top1_agreement_64"] == 0
    assert found["flags"] == ["top-1 agreement with the baseline only 0%"]
    assert section(lane, baseline, fill="synthetic")["flags"] == []


def test_agreement_is_over_the_first_64_tokens_of_all_rows():
    reference = [[1, 2]] * 40
    assert top1_agreement([[1, 2]] * 32 + [[9, 9]] * 8, reference) == 1.0
    assert top1_agreement([[1, 9]] * 40, reference) == 0.5
    assert top1_agreement([], []) is None


def test_a_time_includes_what_the_device_still_has_to_do(monkeypatch):
    """A fake asynchronous device: work is queued at once and takes 5 s, which only a sync waits for."""
    clock, queue = [0.0], []

    def sync():
        clock[0] += 5.0 * len(queue)
        queue.clear()

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    queue.append("left over from before")
    assert timing.timed(lambda: queue.append("work") or "result", sync) == ("result", 5.0)
    assert timing.timed(lambda: queue.append("work"), lambda: None)[1] == 0.0


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with timing.threads(before + 1) as count:
        assert count == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_every_row_is_fed_another_stretch_of_the_text():
    ids = torch.arange(10)
    assert feed_tokens(ids, 2, 7).tolist() == [[0, 1, 2, 3, 4, 5, 6], [5, 6, 7, 8, 9, 0, 1]]
    assert feed_tokens(ids, 1, 12).tolist() == [[*range(10), 0, 1]]


@pytest.fixture
def small_probe(monkeypatch):
    monkeypatch.setattr(timing, "PROBE_BYTES", 1 << 20)


def test_all_lanes_see_the_same_tokens_and_grow_equally(small_probe):
    model = random_model("random-llama")
    finished = []
    results = speed_block(
        model,
        {"exact": "exact", "dynamic": "dynamic", "int4": "int4-head+r8+f16"},  # the baseline is no first arm
        context=40,
        ids=IDS,
        batch=2,
        rounds=2,
        block=3,
        on_arm=lambda label, result: finished.append(label),
    )
    assert finished == ["exact", "dynamic", "int4"]
    speed = {label: result["speed"] for label, result in results.items()}
    assert {s["steps"] for s in speed.values()} == {2 * (3 - 1)}
    assert speed["dynamic"]["ratio_to_baseline"] == 1.0
    assert speed["exact"]["top1_agreement_64"] == 1.0
    engines = {label: result["effective"]["engine"] for label, result in results.items()}
    assert engines["dynamic"] == "sdpa" and engines["int4"] != "sdpa"
    assert results["dynamic"]["effective"]["attn"] == "sdpa"
    assert results["int4"]["effective"]["attn"] == "quantkv"
    json.dumps(results, allow_nan=False)
    assert model.config._attn_implementation == "sdpa"


def test_the_baseline_runs_even_when_nobody_asked_for_it(small_probe):
    model = random_model("random-llama")
    results = speed_block(model, {"int4": "int4-head+r8+f16"}, context=40, ids=IDS, rounds=1, block=2)
    assert list(results) == ["int4"]
    assert results["int4"]["speed"]["baseline_ms_median"] > 0


def test_a_synthetic_fill_has_no_prefill_numbers(small_probe):
    model = random_model("random-llama")
    arms = {"dynamic": "dynamic", "exact": "exact"}
    results = speed_block(model, arms, context=50, ids=IDS, rounds=1, block=4, fill="synthetic")
    for result in results.values():
        assert result["speed"]["prefill_tokens_per_s"] is None
        assert result["speed"]["time_to_first_token_ms"] is None
        assert result["speed"]["steps"] == 3
    assert results["exact"]["speed"]["top1_agreement_64"] == 1.0, (
        "all lanes hold the same random keys and values"
    )


def test_a_function_has_no_speed_and_does_not_stop_the_others(small_probe):
    model = random_model("random-llama")
    arms = {"function": lambda x: x, "int4": "int4-head+r8+f16"}
    results = speed_block(model, arms, context=40, ids=IDS, rounds=1, block=2)
    assert results["function"]["status"] == "skipped" and "no speed" in results["function"]["reason"]
    assert results["int4"]["status"] == "ok"


def test_wrong_settings_are_refused():
    model = random_model("random-llama", max_position_embeddings=64)
    with pytest.raises(QuantKVError, match="prefill, synthetic"):
        speed_block(model, {}, context=10, ids=IDS, fill="random")
    with pytest.raises(QuantKVError, match=r"90 tokens .* limit of 64"):
        speed_block(model, {}, context=10, ids=IDS, rounds=10, block=8)
