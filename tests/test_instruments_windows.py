import pytest
import torch

from quantkv.errors import QuantKVError
from quantkv.instruments.windows import make_windows, scored_length, whole_windows, window

IDS = torch.arange(100, 1100)
BOS = 7


@pytest.mark.parametrize("bos", [None, BOS])
@pytest.mark.parametrize("windows", [1, 3, 16])
@pytest.mark.parametrize("score", [1, 8, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_contexts_score_the_same_targets_each_once(bos, windows, score, seed):
    plan = make_windows(IDS, span=300, score=score, windows=windows, seed=seed, bos_id=bos)
    scored = {context: [w[context + 1 :].tolist() for w in plan.at(context)] for context in (1, 17, 300)}
    assert scored[1] == scored[17] == scored[300]
    targets = [token for targets in scored[1] for token in targets]
    assert len(targets) == len(set(targets)) == windows * score
    assert [targets[0] for targets in scored[1]] == [int(IDS[start]) for start in plan.starts]


@pytest.mark.parametrize("context", [1, 5, 64])
def test_a_window_is_consecutive_text_and_bos_replaces_its_oldest_token(context):
    plain = make_windows(IDS, span=64, score=8, windows=2).at(context)
    assert all(w.tolist() == list(range(w[0], w[0] + context + 9)) for w in plain)
    for w in make_windows(IDS, span=64, score=8, windows=2, bos_id=BOS).at(context):
        assert len(w) == context + 9 and w[0] == BOS
        assert w[1:].tolist() == list(range(w[1], w[1] + context + 8))


def test_the_first_target_after_the_prompt_is_not_scored():
    ids = window(IDS, 50, 10, score=4)
    queries, targets = ids[10:14], ids[11:]
    assert len(targets) == 4 and targets.tolist() == (queries + 1).tolist()
    assert ids[10] == queries[0] and ids[10] not in targets


def test_positions_are_spread_over_the_text_and_depend_on_the_seed_only():
    plan = make_windows(IDS, span=100, score=10, windows=4, seed=3)
    room = (len(IDS) - 101) / 4
    strata = [int((start - 101) // room) for start in plan.starts]
    assert strata == [0, 1, 2, 3]
    assert plan.ends == make_windows(IDS, span=100, score=10, windows=4, seed=3).ends
    assert plan.ends != make_windows(IDS, span=100, score=10, windows=4, seed=4).ends


@pytest.mark.parametrize("bos, needed", [(None, 10 + 1 + 20), (BOS, 10 + 20)])
def test_a_text_of_exactly_the_needed_length_works_and_one_less_names_it(bos, needed):
    options = {"span": 10, "score": 5, "windows": 4, "bos_id": bos}
    plan = make_windows(IDS[:needed], **options)
    assert plan.ends[-1] == needed
    assert sorted(t for w in plan.at(10) for t in w[11:].tolist()) == IDS[needed - 20 : needed].tolist()
    with pytest.raises(QuantKVError, match=rf"need {needed} tokens, there are {needed - 1}"):
        make_windows(IDS[: needed - 1], **options)


@pytest.mark.parametrize("wrong", [{"windows": 0}, {"score": 0}, {"span": 0}])
def test_counts_below_one_are_errors(wrong):
    with pytest.raises(QuantKVError, match="at least 1"):
        make_windows(IDS, **({"span": 10, "score": 5, "windows": 4} | wrong))


@pytest.mark.parametrize("context", [0, 65])
def test_a_context_outside_the_span_is_an_error(context):
    with pytest.raises(QuantKVError, match=r"1\.\.64"):
        make_windows(IDS, span=64, score=8, windows=2).at(context)


def test_windows_of_unequal_length_are_refused():
    assert scored_length([IDS[:20], IDS[:20]], 10) == 9
    with pytest.raises(QuantKVError, match="context"):
        scored_length([IDS[:20], IDS[:21]], 10)
    with pytest.raises(QuantKVError, match="context"):
        scored_length([IDS[:11]], 10)


@pytest.mark.parametrize("length", [2, 7, 10])
@pytest.mark.parametrize("tokens", [10, 29, 30, 31])
def test_whole_windows_score_each_token_once_but_for_the_first_of_each(length, tokens):
    plan = whole_windows(IDS[:tokens], length=length)
    scored = [int(token) for w in plan.at(length) for token in w[1:]]
    held = tokens // length * length
    assert scored == [int(token) for i, token in enumerate(IDS[:held]) if i % length]
    assert [int(w[1]) for w in plan.at(length)] == [int(IDS[start]) for start in plan.starts]
