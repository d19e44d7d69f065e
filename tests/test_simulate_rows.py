"""The decode-exact pass over batches whose rows differ: each row equals its own literal decoding.

Every default spec runs once; how the prompt came in, padding, policy and model take turns, so that each pair
of them meets in some spec.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
import torch
from default_specs import DEFAULT_SPECS
from runs import left_padded, logits_in_calls, positions, token_ids, with_attention
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from quantkv import CacheSpec, QuantizedCache, QuantKVError, parse_spec, simulate
from quantkv.models import random_model

LIMIT = 1e-6
"""Largest difference of log-probabilities in float64; correct code stays near 1e-13."""
CHUNKS = [29, 29, 12]
PROMPT = sum(CHUNKS)
MODES = ("none", "one length", "a length per row", "all but last", "chunks", "stream", "final")
PADDINGS = ("none", "left", "right with a mask", "right without one")
POLICIES: dict[str, tuple[int, int] | None] = {"own": None, "no sinks, no window": (0, 0), "long": (3, 40)}
"""(sinks, recent)."""
MODELS = ("random-llama", "random-qwen2", "random-gemma3")

pytestmark = pytest.mark.usefixtures("no_gradients")


@dataclass(frozen=True)
class Batch:
    """`begins` and `ends` of the real tokens of three rows, as a call sees them."""

    padding: str
    length: int

    @property
    def begins(self) -> list[int]:
        return [0, 3, 21] if self.padding == "left" else [0, 0, 0]

    @property
    def ends(self) -> list[int]:
        return [self.length - cut for cut in ((5, 0, 17) if "right" in self.padding else (0, 0, 0))]

    @property
    def mask(self) -> Tensor | None:
        if self.padding in ("none", "right without one"):
            return None
        ends = torch.tensor(self.ends)[:, None]
        return left_padded(self.begins, self.length) * (torch.arange(self.length) < ends)

    @property
    def lengths(self) -> list[int] | None:
        return self.ends if self.padding == "right without one" else None

    def row_prefills(self) -> list[int]:
        """Shorter than left padding, odd, and all of a row."""
        return [self.ends[0] // 2, 2, self.ends[2]]


def arguments(mode: str, batch: Batch) -> dict[str, Any]:
    """What `simulate` is told."""
    return {
        "none": {},
        "one length": {"prefill": PROMPT},
        "a length per row": {"prefill": batch.row_prefills()},
        "all but last": {"prefill": "all_but_last"},
        "chunks": {"calls": CHUNKS},
        "stream": {"calls": [1] * PROMPT},
        "final": {"prefill": PROMPT, "prefill_reads": "final"},
    }[mode]


def prompt_calls(mode: str, batch: Batch, row: int) -> list[int]:
    """The calls in which a row's prompt really comes; the rest comes token by token."""
    return {
        "none": [],
        "one length": [PROMPT],
        "a length per row": [batch.row_prefills()[row]],
        "all but last": [batch.ends[row] - 1],
        "chunks": CHUNKS,
        "stream": [1] * PROMPT,
        "final": [PROMPT],
    }[mode]


def literal_row(model: Any, ids: Tensor, spec: Any, mode: str, batch: Batch, row: int) -> Tensor:
    """Log-probabilities of the real tokens of one row, decoded alone through the real cache."""
    begin, end = batch.begins[row], batch.ends[row]
    sizes = prompt_calls(mode, batch, row)
    cache = QuantizedCache(model.config, spec, prefill="final" if mode == "final" else "exact")
    mask = left_padded([begin], end) if begin else None
    sizes = [*sizes, *[1] * (end - sum(sizes))]
    model = with_attention(model, "quantkv")
    return logits_in_calls(model, ids[row : row + 1, :end], cache, sizes, mask)[0, begin:].log_softmax(-1)


def furthest(model: Any, spec: Any, mode: str, batch: Batch) -> tuple[float, Any]:
    """The largest difference over real tokens, and the simulation."""
    ids, mask = token_ids(3, batch.length), batch.mask
    padded = {} if mask is None else {"attention_mask": mask, "position_ids": positions(mask)}
    with simulate(model, spec, lengths=batch.lengths, **arguments(mode, batch)) as simulation:
        whole = model(ids, use_cache=False, **padded).logits.log_softmax(-1)
    worst = 0.0
    for row, (begin, end) in enumerate(zip(batch.begins, batch.ends, strict=True)):
        expected = literal_row(model, ids, spec, mode, batch, row)
        worst = max(worst, (whole[row, begin:end] - expected).abs().max().item())
    return worst, simulation


def with_policy(text: str, policy: str) -> CacheSpec:
    """A spec under another policy; per-layer overrides keep theirs."""
    spec, wanted = parse_spec(text), POLICIES[policy]
    if wanted is None:
        return spec
    key, value = (replace(t, recent=wanted[1]) for t in (spec.key, spec.value))
    return replace(spec, sinks=wanted[0], key=key, value=value)


def case(number: int) -> tuple[str, str, str, str]:
    turn = number // len(MODES)
    policy = list(POLICIES)[turn % len(POLICIES)]
    return MODES[number % len(MODES)], PADDINGS[turn % 4], policy, MODELS[turn // 4 % len(MODELS)]


def test_every_pair_of_choices_meets() -> None:
    cases = [case(number) for number in range(len(DEFAULT_SPECS))]
    for axes in combinations(((0, MODES), (1, PADDINGS), (2, tuple(POLICIES)), (3, MODELS)), 2):
        (i, one), (j, other) = axes
        assert len({(c[i], c[j]) for c in cases}) == len(one) * len(other)


def length_for(spec: CacheSpec) -> int:
    """Long enough that every row flushes, padding included."""
    return max(100, *(t.recent + t.flush + spec.sinks + 30 for t in (spec.key, spec.value)))


@pytest.mark.parametrize(("number", "text"), list(enumerate(DEFAULT_SPECS)))
def test_rows_equal_their_own_decoding(number: int, text: str) -> None:
    mode, padding, policy, family = case(number)
    spec, model = with_policy(text, policy), random_model(family, dtype=torch.float64)
    worst, _ = furthest(model, spec, mode, Batch(padding, length_for(spec)))
    assert worst <= LIMIT, (mode, padding, policy, family)


@pytest.mark.parametrize("mode", ["a length per row", "all but last", "chunks"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_sliding_layers_that_are_packed(padding: str, mode: str) -> None:
    model = random_model("random-gemma3", dtype=torch.float64, sliding_window=24)
    spec = "int4-channel@g16+r3+f16+s2+k8+sliding"
    assert furthest(model, spec, mode, Batch(padding, 110))[0] <= LIMIT


def tiny(family: str) -> Any:
    """Families with a soft cap of scores (gemma2) and with sink logits (gpt_oss)."""
    shared = {
        "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "sliding_window": 24,
        "pad_token_id": None, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    own: dict[str, dict[str, Any]] = {
        "gemma2": {"attn_logit_softcapping": 0.5, "initializer_range": 0.2},
        "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "initializer_range": 0.2},
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shared, **own[family]))
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    model.set_experts_implementation("eager")  # the fused one has no float64
    return model.double().eval()


@pytest.mark.parametrize("mode", ["a length per row", "all but last", "one length"])
@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_soft_caps_and_sink_logits(family: str, mode: str) -> None:
    for padding in ("left", "right without one"):
        spec = "int4-head+r8+f16+s2+sliding"
        assert furthest(tiny(family), spec, mode, Batch(padding, 100))[0] <= LIMIT, padding


@pytest.mark.parametrize("mode", ["a length per row", "all but last", "one length"])
def test_rows_do_not_agree_by_accident(mode: str) -> None:
    """One token more in the prefill of one row changes that row alone, by far more than the limit."""
    model, batch, ids = (
        random_model("random-llama", dtype=torch.float64),
        Batch("none", 110),
        token_ids(3, 110),
    )

    def run(prefill: Any) -> Tensor:
        with simulate(model, "int2-head+r8+f16+s2", prefill=prefill):
            return model(ids, use_cache=False).logits.log_softmax(-1)

    rows = [prompt_calls(mode, batch, row)[0] for row in range(3)]
    gaps = (run([rows[0], rows[1], rows[2] - 1]) - run(rows)).abs().amax((1, 2))
    assert gaps[:2].max() == 0 and gaps[2] > 1e-3


# --- blocks ---
def test_blocks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = random_model("random-gemma3", dtype=torch.float64), token_ids(2, 300)
    results = []
    for most, scores in ((8, 2**22), (37, 2**22), (128, 1), (1000, 2**30)):
        monkeypatch.setattr("quantkv.decode_exact.split_attention.MOST_QUERIES", most)
        monkeypatch.setattr("quantkv.decode_exact.split_attention.BLOCK_SCORES", scores)
        with simulate(model, "kivi-2+r8+f32+s2+sliding", prefill=[50, 7]):
            results.append(model(ids, use_cache=False).logits.log_softmax(-1))
    assert all((result - results[0]).abs().max() <= 1e-10 for result in results)


def test_ready_masks_are_masks() -> None:
    """A 4-D mask passes by the mask function: nothing of the padding of the call before may stay."""
    model, ids = random_model("random-llama", dtype=torch.float64), token_ids(2, 100)
    causal = torch.ones(100, 100, dtype=torch.bool).tril().expand(2, 1, -1, -1)
    mask = left_padded([0, 9], 100)
    with simulate(model, "int4-head+r8+f16+s2", prefill=60) as simulation:
        plain = model(ids, use_cache=False).logits
        model(ids, attention_mask=mask, position_ids=positions(mask), use_cache=False)
        assert simulation.pads == [0, 9]
        ready = model(ids, attention_mask=causal, use_cache=False).logits
    assert simulation.pads is None
    assert (plain - ready).abs().max() <= 1e-10


# --- what is counted ---
SPEC = "int4-head+r8+f16+s2"


def by_hand(begin: int, first: int, end: int) -> tuple[int, int]:
    """(attended, packed) pairs of one tensor for queries [first, end) of a row that begins at `begin`."""
    attended = sum(i + 1 - begin for i in range(max(first, begin), end))
    return attended, sum(max(0, i - begin - 2 - 8) // 16 * 16 for i in range(first, end))


@pytest.mark.parametrize("padding", PADDINGS)
def test_fractions_of_rows_by_hand(padding: str) -> None:
    batch = Batch(padding, 110)
    _, simulation = furthest(random_model("random-llama"), SPEC, "a length per row", batch)
    counts = [by_hand(*row) for row in zip(batch.begins, batch.row_prefills(), batch.ends, strict=True)]
    expected = [packed / attended if attended else 0.0 for attended, packed in counts]
    assert simulation.packed_read_fractions == pytest.approx(expected)
    attended, packed = (sum(column) for column in zip(*counts, strict=True))
    assert simulation.packed_read_fraction == pytest.approx(packed / attended)


def test_the_last_token_alone_by_hand() -> None:
    _, simulation = furthest(random_model("random-llama"), SPEC, "all but last", Batch("none", 110))
    assert simulation.packed_read_fractions == pytest.approx([(110 - 1 - 10) // 16 * 16 / 110] * 3)


def test_rows_are_those_of_the_last_batch_and_all_batches_count() -> None:
    model = random_model("random-llama")
    with simulate(model, SPEC, prefill=40) as simulation:
        for rows, length in ((3, 60), (2, 90)):
            model(token_ids(rows, length), use_cache=False)
    (a, p), (b, q) = by_hand(0, 40, 60), by_hand(0, 40, 90)
    assert simulation.packed_read_fractions == pytest.approx([q / b] * 2)
    assert simulation.packed_read_fraction == pytest.approx((3 * p + 2 * q) / (3 * a + 2 * b))


def test_nothing_ran_is_no_number(tiny_llama: Any) -> None:
    with simulate(tiny_llama, SPEC) as simulation:
        pass
    assert math.isnan(simulation.packed_read_fraction) and simulation.packed_read_fractions == []


# --- arguments ---
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill": -1}, "from 0 on"),
        ({"prefill": [3, -1]}, "from 0 on"),
        ({"prefill": 2.5}, "whole numbers"),
        ({"prefill": [2.5, 1.0]}, "whole numbers"),
        ({"prefill": [True, False]}, "whole numbers"),
        ({"prefill": torch.ones(2, 2, dtype=torch.long)}, "whole numbers"),
        ({"prefill": []}, "no rows"),
        ({"prefill": "last"}, "all_but_last"),
        ({"calls": [3, 0]}, "from 1 on"),
        ({"calls": [3], "prefill": "all_but_last"}, "not both"),
        ({"calls": [3], "prefill": [3]}, "not both"),
        ({"prefill": [3, 4], "prefill_reads": "final"}, "one length for all rows"),
        ({"prefill": "all_but_last", "prefill_reads": "final"}, "one length for all rows"),
        ({"lengths": [-3]}, "from 0 on"),
    ],
)
def test_impossible_arguments_are_refused_at_once(
    tiny_llama: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QuantKVError, match=message), simulate(tiny_llama, SPEC, **options):
        pytest.fail("nothing may run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill": 21}, "21 tokens is longer than the row of 20"),
        ({"prefill": [3, 21]}, "21 tokens is longer"),
        ({"calls": [15, 6]}, "21 tokens is longer"),
        ({"prefill": [3, 4, 5]}, "names 3 rows, the model was called with 2"),
        ({"lengths": [20]}, "names 1 rows"),
        ({"lengths": [20, 21]}, "the rows have 20"),
    ],
)
def test_arguments_that_fit_no_row_are_refused_at_the_call(
    tiny_llama: Any, options: dict[str, Any], message: str
) -> None:
    with simulate(tiny_llama, SPEC, **options), pytest.raises(QuantKVError, match=message):
        tiny_llama(token_ids(2, 20), use_cache=False)
