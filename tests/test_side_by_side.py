"""Random sequences of cache calls: the lossless packed cache answers as a `DynamicCache`."""

from __future__ import annotations

from pathlib import Path

import pytest
from side_by_side import CONFIGS, run_sequence

QUICK, SLOW = range(7), range(7, 275)
"""Sequences for each of the eight families."""

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("family", CONFIGS)
def test_random_calls(family: str, tmp_path: Path) -> None:
    for seed in QUICK:
        run_sequence(family, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_many_random_calls(family: str, tmp_path: Path) -> None:
    for seed in SLOW:
        run_sequence(family, seed, tmp_path)
