"""The lists of the second tier name tests that exist, and keep something of each in the first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiers import LATER, SPARSE, later

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", [*SPARSE, *LATER])
def test_what_is_listed_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert re.search(rf"^def {test or 'test_'}", (HERE / file).read_text(), re.M)


def test_every_nth_case_is_of_the_first_tier() -> None:
    name, n = next(iter(SPARSE.items()))
    seen: dict[str, int] = {}
    kept = [case for case in range(2 * n + 1) if not later(f"tests/{name}[{case}]", seen)]
    assert kept == [0, n, 2 * n]
    assert not later("tests/test_policy.py::test_another", seen)
