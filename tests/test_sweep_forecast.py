"""Time left: learnt from finished cells, fitted to the context, shared by the workers."""

from __future__ import annotations

import pytest

from quantkv.sweep.forecast import Forecast
from quantkv.sweep.progress import time_left


def forecast(*seen: tuple[str, int, float], **workers: int) -> Forecast:
    made = Forecast(workers)
    for kind, context, seconds in seen:
        made.learn(kind, context, seconds)
    return made


def test_what_was_seen_is_expected_again() -> None:
    known = forecast(("quality", 512, 2.0), ("quality", 512, 4.0))
    assert known.left([("quality", 512)] * 2) == (6.0, {})
    assert known.left([]) == (0, {})


def test_kinds_never_seen_are_counted_not_guessed() -> None:
    known = forecast(("quality", 512, 2.0))
    cells = [("quality", 512), ("speed", 512), ("memory", 512), ("speed", 1024)]
    assert known.left(cells) == (2.0, {"speed": 2, "memory": 1})
    assert forecast().left([("speed", 512)]) == (0, {"speed": 1})


def test_what_is_not_known_is_never_said_as_no_time() -> None:
    """Late in a sweep: speed is nearly done, and no memory cell has finished."""
    known = forecast(("quality", 512, 60.0), ("speed", 512, 5.0))
    assert time_left(*known.left([("speed", 512)])) == "about 5 s left"
    assert time_left(*known.left([("speed", 512)] + [("memory", 512)] * 16)) == (
        "about 5 s left + unknown for 16 memory cells"
    )
    assert time_left(*known.left([("memory", 512)] * 16)) == "time left unknown for 16 memory cells"
    known.learn("memory", 512, 20.0)
    assert time_left(*known.left([("memory", 512)] * 15)) == "about 5 min left"
    assert time_left(*known.left([])) == ""


def test_two_contexts_tell_how_time_grows_with_the_context() -> None:
    """A memory cell spends most of its time on loading the model: 8 s and 2 s per 1024 tokens."""
    known = forecast(("memory", 512, 9.0), ("memory", 2048, 12.0))
    for context, seconds in ((4096, 16.0), (1024, 10.0)):
        assert known.left([("memory", context)]) == (pytest.approx(seconds), {})


def test_one_context_is_scaled_by_half_and_times_never_fall_with_the_context() -> None:
    assert forecast(("quality", 512, 4.0)).left([("quality", 1024)]) == (6.0, {})
    noise = forecast(("speed", 512, 4.0), ("speed", 1024, 2.0))
    assert noise.left([("speed", 4096)]) == (3.0, {})
    steep = forecast(("quality", 1024, 1.0), ("quality", 4096, 16.0))
    assert steep.left([("quality", 512)]) == (0.5, {})


def test_workers_share_the_cells_of_a_context() -> None:
    cells = [("memory", 512)] * 5 + [("quality", 512)]
    known = forecast(("memory", 512, 10.0), ("quality", 512, 1.0), memory=2)
    assert known.left(cells) == (3 * 10.0 + 1.0, {})


def test_what_the_cells_of_a_block_share_is_added() -> None:
    known = forecast(*[("quality", 512, 10.0)] * 4)
    known.took("quality", 512, 4, 80.0)
    assert known.left([("quality", 512)] * 4) == (80.0, {})
    known.took("speed", 512, 4, 80.0)
    assert known.left([("speed", 512)]) == (0, {"speed": 1})
