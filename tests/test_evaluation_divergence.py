import math

import pytest
import torch

from quantkv.evaluation import divergence
from quantkv.evaluation.divergence import compare, kl_divergence, log_softmax, top_overlap


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
