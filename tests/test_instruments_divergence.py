import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkv.instruments import divergence
from quantkv.instruments.divergence import compare, kl_divergence, log_softmax, top_overlap


def logits_of(*probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log() + 3.0


def test_known_distributions():
    ref, arm = logits_of([0.5, 0.25, 0.25], [0.1, 0.6, 0.3]), logits_of([0.25, 0.5, 0.25], [0.1, 0.6, 0.3])
    scores = compare(ref, arm, torch.tensor([0, 2]))
    assert scores.nll.tolist() == pytest.approx([math.log(4), -math.log(0.3)], abs=1e-12)
    assert scores.nll_ref.tolist() == pytest.approx([math.log(2), -math.log(0.3)], abs=1e-12)
    assert scores.kl.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-12)
    assert scores.top1.tolist() == [False, True]


def test_kl_is_taken_from_the_reference():
    p, q = logits_of([0.9, 0.1]).log_softmax(-1), logits_of([0.5, 0.5]).log_softmax(-1)
    assert kl_divergence(p, q).item() == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), abs=1e-12)
    assert kl_divergence(q, p).item() == pytest.approx(
        0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5), abs=1e-12
    )


def test_tokens_of_probability_zero_do_not_make_nan():
    ref, arm = torch.tensor([[0.0, -math.inf, 0.0]]), torch.tensor([[0.0, 0.0, 0.0]])
    assert compare(ref, arm, torch.tensor([0])).kl.item() == pytest.approx(math.log(1.5), abs=1e-6)
    assert compare(arm, ref, torch.tensor([0])).kl.item() == math.inf


def test_equal_logits_have_no_divergence_and_a_shift_changes_nothing():
    noise = torch.randn(5, 4000, generator=torch.Generator().manual_seed(0)) * 4
    assert compare(noise, noise, torch.zeros(5, dtype=torch.long)).kl.tolist() == [0.0] * 5
    shifted = compare(noise, noise + 11.3, torch.zeros(5, dtype=torch.long)).kl
    assert (shifted >= 0).all() and shifted.max() < 1e-11


def test_a_small_divergence_survives_float32():
    generator = torch.Generator().manual_seed(1)
    ref = torch.randn(4, 50_000, generator=generator) * 3 + 20
    arm = ref + 1e-4 * torch.randn(4, 50_000, generator=generator)
    p, q = ref.double().log_softmax(-1), arm.double().log_softmax(-1)
    exact = (p.exp() * (p - q)).sum(-1)
    assert compare(ref, arm, torch.zeros(4, dtype=torch.long)).kl.tolist() == pytest.approx(
        exact.tolist(), rel=0.02
    )


@pytest.mark.parametrize(
    "ref, arm, agrees",
    [
        ([1.0, 0.0, 0.0], [2.0, 1.0, 0.0], True),
        ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], False),
        ([1.0, 1.0, 0.0], [0.0, 1.0, 0.0], True),
        ([0.0, 1.0, 0.0], [1.0, 1.0, 0.0], True),
        ([1.0, 1.0, 0.0], [0.0, 0.0, 1.0], False),
    ],
)
def test_top1_ties_agree_when_they_share_a_token(ref, arm, agrees):
    assert top_overlap(torch.tensor([ref]), torch.tensor([arm]), 1).item() == agrees


@pytest.mark.parametrize(
    "ref, arm, share",
    [
        ([9, 8, 7, 6, 5, 0, 0], [5, 6, 7, 8, 9, 0, 0], 1.0),  # the same five in another order
        ([9, 8, 7, 6, 5, 0, 0], [9, 8, 7, 6, 0, 5, 0], 0.8),  # one of five is another token
        ([9, 8, 7, 6, 5, 4, 3], [0, 0, 1, 2, 3, 4, 5], 0.6),  # tokens 2, 3 and 4 are in both
        ([9, 8, 7, 6, 5, 5, 5], [9, 8, 7, 6, 0, 1, 5], 1.0),  # a tie for the fifth place goes to token 6
        ([9, 8, 7, 6, 5, 0, 0], [5, 5, 5, 5, 5, 5, 5], 1.0),  # a flat distribution agrees with any
        ([9, 9, 9, 9, 0, 1, 1], [0, 0, 1, 1, 9, 9, 9], 0.6),  # tokens 2, 3 and one of 5 and 6
    ],
)
def test_top5_by_hand(ref, arm, share):
    rows = [torch.tensor([x], dtype=torch.float32) for x in (ref, arm)]
    assert top_overlap(*rows, 5).item() == pytest.approx(share)
    assert compare(*rows, torch.tensor([0])).top5.item() == pytest.approx(share)


def top_sets(scores, k):
    """Every set of k tokens that may be called the k most likely ones."""
    best = sorted(scores, reverse=True)[:k]
    return [
        set(tokens)
        for tokens in itertools.combinations(range(len(scores)), k)
        if sorted((scores[i] for i in tokens), reverse=True) == best
    ]


scores_with_ties = st.lists(st.integers(0, 3), min_size=7, max_size=7)


@given(ref=scores_with_ties, arm=scores_with_ties, k=st.integers(1, 5))
def test_ties_are_broken_so_that_most_agrees(ref, arm, k):
    shared = max(len(one & other) for one in top_sets(ref, k) for other in top_sets(arm, k))
    rows = (torch.tensor([x], dtype=torch.float32) for x in (ref, arm))
    assert top_overlap(*rows, k).item() == pytest.approx(shared / k)


def test_a_vocabulary_of_three_has_a_top_three():
    assert top_overlap(torch.rand(4, 3), torch.rand(4, 3), 5).tolist() == [1.0] * 4


def test_chunks_change_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    ref, arm = (torch.randn(7, 50, generator=generator) for _ in range(2))
    targets = torch.arange(7)
    whole = compare(ref, arm, targets)
    monkeypatch.setattr(divergence, "CHUNK_ELEMENTS", 120)
    pieces = compare(ref, arm, targets)
    for name in ("nll", "nll_ref", "kl", "top1", "top5"):
        assert torch.equal(getattr(whole, name), getattr(pieces, name))


@pytest.mark.parametrize(
    "given, taken",
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_the_log_softmax_is_float32_or_float64(given, taken):
    assert log_softmax(torch.zeros(1, 3, dtype=given)).dtype == taken


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        compare(torch.zeros(2, 3), torch.zeros(3, 3), torch.zeros(3, dtype=torch.long))
