"""From answers to the retrieval section of a row: every score beside that of the exact cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from quantkv.instruments.statistics import SIGNIFICANT, beats_chance, paired_p_value, wilson, window_interval
from quantkv.measurements.checks import few_packed
from quantkv.measurements.retrieval.tasks import Question


@dataclass(frozen=True, slots=True)
class Answered:
    """`right`: greedy decoding gives the answer. `log_prob`: nats, of the whole answer. `said`: the most
    likely token at each of its places."""

    right: bool
    log_prob: float
    said: Tensor


def retrieval_section(
    questions: Sequence[Question],
    answers: Sequence[Answered],
    reference: Sequence[Answered],
    *,
    packed_read: float,
    seed: int = 0,
) -> dict[str, Any]:
    """All estimates over the samples of one task at one context: shares with Wilson intervals,
    log-probabilities in nats per answer with the interval of their paired difference (None below 8 samples).

    `verdict` is worse, better or no difference shown (exact paired test, 5 %), and None where the exact cache
    itself does no better than chance: then `inconclusive_because` says so.
    """
    n, right, right_ref = len(answers), [a.right for a in answers], [a.right for a in reference]
    gaps = np.array([a.log_prob - r.log_prob for a, r in zip(answers, reference, strict=True)])
    low, high = window_interval(gaps, np.ones(n), seed=seed)
    chance, p_value = max(q.sample.chance for q in questions), paired_p_value(right, right_ref)
    reason = None if beats_chance(sum(right_ref), n, chance) else _at_chance(sum(right_ref), n, chance)
    return {
        "task": questions[0].task,
        "n": n,
        **_share("", right),
        **_share("_ref", right_ref),
        "chance": chance,
        "p_value": p_value,
        "log_prob": _mean(answers),
        "log_prob_ref": _mean(reference),
        "delta_log_prob": float(gaps.mean()),
        "delta_log_prob_low": low,
        "delta_log_prob_high": high,
        "packed_read_fraction": packed_read,
        "conclusive": reason is None,
        "inconclusive_because": reason,
        "verdict": _verdict(right, right_ref, p_value) if reason is None else None,
        "depths": _by_depth(questions, answers, reference),
        "answers": [_told(*one) for one in zip(questions, answers, reference)],
        "flags": [*([f"inconclusive: {reason}"] if reason else []), *few_packed(packed_read)],
    }


def _share(suffix: str, right: Sequence[bool]) -> dict:
    hits, (low, high) = sum(right), wilson(sum(right), len(right))
    values = {"": hits / len(right), "_low": low, "_high": high}
    return {f"hits{suffix}": hits} | {f"exact_match{suffix}{end}": value for end, value in values.items()}


def _mean(answers: Sequence[Answered]) -> float:
    return float(np.mean([answer.log_prob for answer in answers]))


def _at_chance(hits: int, n: int, chance: float) -> str:
    return f"the exact cache answers {hits} of {n}, which is no better than chance ({chance:.2g} each)"


def _verdict(right: Sequence[bool], right_ref: Sequence[bool], p_value: float) -> str:
    if p_value >= SIGNIFICANT:
        return "no difference shown"
    return "worse" if sum(right) < sum(right_ref) else "better"


def _by_depth(
    questions: Sequence[Question], answers: Sequence[Answered], reference: Sequence[Answered]
) -> list[dict]:
    """Hits and mean log-probabilities at each depth, in the order of the depths."""
    found = []
    for depth in sorted({question.depth for question in questions}):
        rows = [i for i, question in enumerate(questions) if question.depth == depth]
        own, ref = [answers[i] for i in rows], [reference[i] for i in rows]
        hits = {"hits": sum(a.right for a in own), "hits_ref": sum(a.right for a in ref)}
        found.append(
            {"depth": depth, "n": len(rows), **hits, "log_prob": _mean(own), "log_prob_ref": _mean(ref)}
        )
    return found


def _told(question: Question, answer: Answered, reference: Answered) -> dict:
    """One sample, so that two runs can be paired later."""
    own = {"right": answer.right, "right_ref": reference.right}
    return {"depth": question.depth, **own, "log_prob": answer.log_prob, "log_prob_ref": reference.log_prob}
