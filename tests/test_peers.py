"""Peers: their names, their bytes, and quality measured by decoding through a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_kvpress
import pytest
import torch
from transformers import DynamicCache

from quantkv import QuantizedCache, evaluate
from quantkv.arms.arm import parse_format
from quantkv.decode_exact.simulate import simulate
from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.instruments.divergence import kl_divergence, log_softmax
from quantkv.instruments.huggingface import cache_shapes, fill
from quantkv.instruments.windows import make_windows
from quantkv.measurements.memory.run import memory_cell
from quantkv.measurements.quality.run import perplexity, quality_block
from quantkv.measurements.quality.token_by_token import decode_token_by_token, packed_share
from quantkv.measurements.running import new_cache
from quantkv.models import random_model
from quantkv.peers import Peer, parse_peer, worker
from quantkv.peers.peer import STOCK
from quantkv.peers.versions import check_peer, versions

CONTEXT, SCORE = 96, 32
IDS = torch.randint(0, 256, (2000,), generator=torch.Generator().manual_seed(1))
SPECS = ("int4-head", "kivi-2", "k.int8-channel@g32+v.int4-head+r16", "exact")


def available(name: str) -> Peer:
    """The peer, or a skipped test where its package is not installed."""
    peer = parse_peer(name)
    try:
        check_peer(peer, random_model("random-llama").config)
    except UnsupportedError as error:
        pytest.skip(str(error))
    return peer


# names


@pytest.mark.parametrize("name", [*STOCK, "kvpress-snapkv-0.5", "kvpress-expected-attention-0.25"])
def test_a_peer_is_its_name(name: str) -> None:
    peer = parse_peer(f"peer:{name}")
    assert str(peer) == f"peer:{name}" and peer.label == name
    assert parse_format(str(peer)) == peer


def test_a_press_takes_a_format_on_top_and_the_policy_of_a_sweep() -> None:
    peer = parse_peer("kvpress-knorm-0.5+int4-head", recent=16)
    assert peer.on_top is not None and peer.on_top.key.recent == 16
    assert str(parse_peer(str(peer))) == str(peer)
    assert peer.recipe == {"kind": "press", "press": "KnormPress", "options": {"compression_ratio": 0.5}}


def test_another_interpreter_is_another_arm(tmp_path: Path) -> None:
    elsewhere = parse_peer("transformers-fp8", python=fake_kvpress.interpreter(tmp_path))
    assert str(elsewhere) == "peer:transformers-fp8@other" != str(parse_peer("transformers-fp8"))
    assert elsewhere.label == "transformers-fp8"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("quanto-int3", "did you mean 'quanto-int4'"),
        ("kvpress-knorm-1.0", "0 < RATIO < 1"),
        ("kvpress-knorm-0.0", "0 < RATIO < 1"),
        ("kvpress-nosuch-0.5", "kvpress-snapkv-RATIO"),
        ("hqq-int4+int4-head", "needs a press"),
        ("kvpress-knorm-0.5+int5-nothing", "int5-nothing"),
    ],
)
def test_a_wrong_name_says_what_is_legal(name: str, complaint: str) -> None:
    with pytest.raises(QuantKVError, match=complaint.replace("(", r"\(")):
        parse_peer(name)


def test_a_missing_interpreter_is_refused_at_once() -> None:
    with pytest.raises(QuantKVError, match="no interpreter '/nowhere/python'"):
        parse_peer("hqq-int4", python="/nowhere/python")


# bytes


def test_bytes_of_a_plain_cache_are_those_of_its_tensors(tiny_llama: Any) -> None:
    cache = fill(DynamicCache(), tiny_llama, 50, 1)
    elements = sum(heads * 50 * (dk + dv) for heads, dk, dv in cache_shapes(tiny_llama))
    assert worker.live_bytes(cache) == worker.exact_bytes(cache) == 4 * elements
    assert worker.kept_tokens(cache) == [50] * len(cache.layers)


def test_shared_tensors_count_once_and_the_whole_storage_behind_a_view_counts() -> None:
    base = torch.zeros(100)
    holder = type("Holder", (), {})()
    holder.parts = [base[:10], {"again": base[50:]}, (torch.zeros(3, dtype=torch.uint8), None, "text")]
    assert worker.live_bytes(holder) == 400 + 3


@pytest.mark.parametrize("name", STOCK)
def test_stock_caches_hold_what_their_groups_say(name: str, tiny_llama: Any) -> None:
    """Codes of `bits`, and two float32 numbers for 64 values; plain floats while fewer than 128 wait."""
    peer = available(name)
    cache = fill(new_cache(tiny_llama, peer), tiny_llama, 64, 1)
    tensors = 2 * len(cache.layers)
    values = sum(heads * 64 * (dk + dv) for heads, dk, dv in cache_shapes(tiny_llama))
    bits = peer.made_by.bits if not peer.is_press else None
    packed = values * bits // 8 + values // 64 * 8 if bits else values + 4 * tensors
    assert worker.live_bytes(cache) == packed and worker.exact_bytes(cache) == 0
    assert cache.get_seq_length() == 64
    for layer, (heads, dk, dv) in enumerate(cache_shapes(tiny_llama)):
        cache.update(torch.ones(1, heads, 1, dk), torch.ones(1, heads, 1, dv), layer)
    assert worker.live_bytes(cache) - packed == values // 64 * (4 if bits else 1)


def test_memory_of_a_peer_is_what_it_holds() -> None:
    available("transformers-fp8")
    sections = memory_cell({"name": "random-llama"}, "peer:transformers-fp8", context=64, steps=4)
    shapes = cache_shapes(random_model("random-llama"))
    held = sum(heads * 64 * (dk + dv) for heads, dk, dv in shapes) + 2 * 4 * len(shapes)
    assert sections["memory"]["held_bytes"] == held
    assert sections["memory"]["predicted_bytes"] is None
    assert sections["effective"]["engine"] == "fp8"


# decoding literally


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("calls", [[CONTEXT], [40, 56], []], ids=["exact", "chunks", "stream"])
def test_literal_decoding_is_the_decode_exact_pass_in_float64(spec: str, calls: list[int]) -> None:
    model = random_model("random-qwen2", dtype=torch.float64)
    ids = IDS[: CONTEXT + SCORE + 1]
    lived = decode_token_by_token(model, QuantizedCache(model.config, spec), ids, calls=calls, first=CONTEXT)
    with torch.inference_mode(), simulate(model, spec, calls=calls or [1] * CONTEXT):
        simulated = model(ids[None, :-1], logits_to_keep=SCORE).logits[0]
    assert lived.shape == simulated.shape == (SCORE, model.config.vocab_size)
    assert (log_softmax(lived) - log_softmax(simulated)).abs().max() <= 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_literal_decoding_is_the_decode_exact_pass_in_float32(spec: str, tiny_llama: Any) -> None:
    ids = IDS[: CONTEXT + SCORE + 1]
    cache = QuantizedCache(tiny_llama.config, spec)
    lived = decode_token_by_token(tiny_llama, cache, ids, calls=[CONTEXT], first=CONTEXT)
    with torch.inference_mode(), simulate(tiny_llama, spec, prefill=CONTEXT):
        simulated = tiny_llama(ids[None, :-1], logits_to_keep=SCORE).logits[0]
    assert kl_divergence(log_softmax(simulated), log_softmax(lived)).mean() <= 1e-6


def test_a_foreign_cache_gets_the_score_that_simulation_gives_the_same_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache of ours in a peer's place: nothing of the way through it may change a number."""
    peer, model = available("transformers-fp8"), random_model("random-llama", dtype=torch.float64)
    monkeypatch.setattr(worker, "new_cache", lambda recipe, config: QuantizedCache(config, "int4-head"))
    options = {"context": CONTEXT, "score": SCORE, "windows": 2}
    foreign = perplexity(model, IDS, peer, **options)
    ours = perplexity(model, IDS, "int4-head", **options)
    assert foreign.kl_mean == pytest.approx(ours.kl_mean, rel=1e-6) and ours.kl_mean > 1e-3
    assert foreign.nll == pytest.approx(ours.nll, rel=1e-9)
    assert foreign.bits_cache_mean == pytest.approx(ours.bits_cache_mean)
    assert foreign.packed_read_fraction is None and 0 < (ours.packed_read_fraction or 0) < 1


@pytest.mark.parametrize("name", ["random-llama", "random-gemma3"])
def test_the_baseline_has_a_quality_and_it_is_the_arithmetic(name: str) -> None:
    found = perplexity(random_model(name), IDS, "dynamic", context=CONTEXT, score=SCORE, windows=2)
    assert 0 <= found.kl_mean < 1e-9 and found.top1_agreement == 1
    # a sliding layer keeps the width of its window as a tensor of 8 bytes, and forgets later
    assert found.bits_cache == pytest.approx(32, rel=1e-4)
    assert found.bits_cache_16 == pytest.approx(16, rel=1e-3)


def arms_of(model: Any, arms: dict[str, Any], **protocol: Any) -> dict[str, Any]:
    plan = make_windows(IDS, span=CONTEXT, score=SCORE, windows=2)
    settings = {"score": SCORE, "windows": 2} | protocol
    return quality_block(model, plan.at(CONTEXT), arms, context=CONTEXT, protocol=settings)


def test_a_peer_and_a_format_are_scored_on_the_same_windows(tiny_llama: Any) -> None:
    peer = available("transformers-fp8")
    found = arms_of(tiny_llama, {"theirs": peer, "ours": "fp8-e4m3"})
    theirs, ours = (found[name]["quality"] for name in ("theirs", "ours"))
    assert [w["sum_nll_ref"] for w in theirs["windows"]] == [w["sum_nll_ref"] for w in ours["windows"]]
    assert theirs["kl_mean"] > 1e-5 and theirs["packed_read_fraction"] is None
    ran = found["theirs"]["effective"]
    assert (ran["spec"], ran["engine"], ran["attn"]) == ("peer:transformers-fp8", "fp8", "sdpa")
    assert "packed reads are not told by this cache" in ran["notes"] and not ran["simulated"]


def test_a_peer_that_keeps_floats_is_called_simulated(
    tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rounded(DynamicCache):
        def update(self, key: Any, value: Any, layer: int, *args: Any, **kwargs: Any) -> Any:
            return super().update((key * 4).round() / 4, (value * 4).round() / 4, layer, *args, **kwargs)

    monkeypatch.setattr(worker, "new_cache", lambda recipe, config: Rounded())
    found = arms_of(tiny_llama, {"theirs": available("transformers-fp8")})["theirs"]
    assert found["effective"]["simulated"] and found["quality"]["bits_cache"] == 32


def test_a_peer_without_effect_is_an_error(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's own logits, to the last bit, cannot come from a lossy cache."""
    peer = available("transformers-fp8")
    monkeypatch.setattr("quantkv.measurements.quality.token_by_token.torch.equal", lambda *_: True)
    found = arms_of(tiny_llama, {"theirs": peer})["theirs"]
    assert found["status"] == "failed" and "changed no logit" in found["reason"]


@pytest.mark.parametrize("name", ["transformers-fp8", "quanto-int4", "hqq-int4"])
def test_a_peer_that_cannot_serve_a_model_is_skipped(name: str, tiny_gemma3: Any) -> None:
    peer = available(name)
    if name == "transformers-fp8":
        found = arms_of(tiny_gemma3, {"theirs": peer})["theirs"]
        assert found["status"] == "skipped" and "full attention" in found["reason"]
    with pytest.raises(UnsupportedError, match="full attention"):
        check_peer(peer, tiny_gemma3.config)


def test_what_simulators_do_is_refused_for_a_real_cache(tiny_llama: Any) -> None:
    found = arms_of(tiny_llama, {"theirs": available("transformers-fp8")}, prefill="final")["theirs"]
    assert found["status"] == "skipped" and "final is what simulators do" in found["reason"]


def test_rows_of_evaluate_carry_the_peers_versions(tiny_llama: Any) -> None:
    available("transformers-fp8")
    from quantkv.models.synthetic import byte_tokenizer

    options = {"contexts": [64], "windows": 1, "score": 16}
    (row,) = evaluate(tiny_llama, byte_tokenizer(), ["peer:transformers-fp8"], **options).rows
    assert row["status"] == "ok" and row["requested"]["format"] == "transformers-fp8"
    assert row["provenance"]["peer"] == versions(parse_peer("transformers-fp8"))
    assert row["provenance"]["peer"]["torch"] == torch.__version__
    assert not any(note.startswith("attn") for note in row["effective"]["notes"])


# eviction


@pytest.fixture
def kvpress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for kvpress in this interpreter."""
    monkeypatch.syspath_prepend(fake_kvpress.install(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "kvpress", raising=False)
    return tmp_path


def masked(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The same by another way: all keys and values are kept, and a mask hides what was dropped."""
    cache = DynamicCache()
    with torch.inference_mode():
        worker.forward(model, ids[:CONTEXT], cache, 0)
        mask = torch.ones(1, len(ids) - 1, dtype=torch.long)
        mask[:, list(fake_kvpress.DROPPED)] = 0
        inputs = {"input_ids": ids[None, CONTEXT:-1], "attention_mask": mask}
        inputs |= {"position_ids": torch.arange(CONTEXT, len(ids) - 1)[None], "cache": cache}
        return model(**inputs).logits[0]


def test_after_an_eviction_positions_go_on_from_the_whole_prompt(kvpress: Path) -> None:
    model, ids = random_model("random-llama", dtype=torch.float64), IDS[: CONTEXT + SCORE + 1]
    recipe = parse_peer("kvpress-knorm-0.5").recipe
    logits, numbers = worker.decode(model, DynamicCache(), recipe, ids, [CONTEXT], CONTEXT)
    kept = CONTEXT - len(fake_kvpress.DROPPED)
    assert numbers["kept"] == [kept] * len(cache_shapes(model))
    assert [length for length, _ in numbers["held"]] == list(range(CONTEXT, CONTEXT + SCORE + 1))
    assert (log_softmax(logits) - log_softmax(masked(model, ids))).abs().max() < 1e-9


def test_a_format_packs_what_a_press_leaves(kvpress: Path) -> None:
    """With an exact cache on top nothing but the eviction is lost; with a lossy one more is."""
    model = random_model("random-llama", dtype=torch.float64)
    names = ("kvpress-knorm-0.5", "kvpress-knorm-0.5+exact", "kvpress-knorm-0.5+int4-head+r8+s0")
    found = arms_of(model, {name: parse_peer(name) for name in names})
    press, exact, packed = (found[name]["quality"] for name in names)
    assert exact["kl_mean"] == pytest.approx(press["kl_mean"], rel=1e-6) and press["kl_mean"] > 1e-4
    assert abs(packed["kl_mean"] / press["kl_mean"] - 1) > 1e-3
    values = sum(heads * 96 * (dk + dv) for heads, dk, dv in cache_shapes(model))
    filled = fill(QuantizedCache(model.config, "int4-head+r8+s0"), model, 80, 1)
    assert press["bits_cache"] == pytest.approx(
        64 * 80 / 96
    )  # of the whole prompt, what was dropped included
    assert packed["bits_cache"] == pytest.approx(8 * filled.predicted_nbytes() / values)
    assert press["packed_read_fraction"] is None and 0.5 < packed["packed_read_fraction"] < 1
    assert "layers keep 80 to 80 of 96 tokens" in found[names[0]]["effective"]["notes"]
    assert found[names[2]]["effective"]["recent_key"] == 8


def test_the_share_of_packed_reads_after_an_eviction_is_counted_by_hand(tiny_llama: Any) -> None:
    """S 0, R 8, F 32: with 40 tokens 32 are packed, with 39 none; a query reads those and its own key."""
    cache = QuantizedCache(tiny_llama.config, "int4-head+r8+s0+f32")
    layers = len(cache.layers)
    assert packed_share(cache, [39] * layers, 2) == pytest.approx(32 / (40 + 41))
    assert packed_share(cache, [10] * layers, 4) == 0


def test_a_format_that_never_packs_what_is_left_is_an_error(kvpress: Path, tiny_llama: Any) -> None:
    found = arms_of(tiny_llama, {"theirs": "peer:kvpress-knorm-0.5+int4-head+r1000"})["theirs"]
    assert found["status"] == "failed" and "reads a packed value" in found["reason"]


def test_a_press_that_drops_nothing_is_an_error(kvpress: Path, tiny_llama: Any) -> None:
    found = arms_of(tiny_llama, {"theirs": "peer:kvpress-tova-0.5"})["theirs"]
    assert found["status"] == "failed" and "dropped none of 96 tokens" in found["reason"]


def test_a_press_wants_its_prompt_in_one_call(kvpress: Path, tiny_llama: Any) -> None:
    found = arms_of(tiny_llama, {"theirs": "peer:kvpress-knorm-0.5"}, prefill="chunk:32")["theirs"]
    assert found["status"] == "skipped" and "one call" in found["reason"]


def test_a_package_that_wants_another_transformers_is_said_so(
    tmp_path: Path, tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(fake_kvpress.install(tmp_path, needs="transformers<4"))
    with pytest.raises(UnsupportedError, match=r"needs transformers<4.*name an interpreter"):
        check_peer(parse_peer("kvpress-knorm-0.5"), tiny_llama.config)


def test_a_press_has_no_speed_and_no_memory(kvpress: Path, tiny_llama: Any) -> None:
    with pytest.raises(UnsupportedError, match="no speed and no memory"):
        new_cache(tiny_llama, parse_peer("kvpress-knorm-0.5"))
    with pytest.raises(UnsupportedError, match="no speed and no memory"):
        memory_cell({"name": "random-llama"}, parse_peer("kvpress-knorm-0.5"), context=64)
