"""What is listed as of the second tier exists, and some of each stays in the first; slow tests are named."""

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


def test_a_test_that_is_slow_twice_needs_a_mark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        def test_quick(): pass
        def test_slow(): sum(range(10**7))
        @pytest.mark.long("on purpose")
        def test_long(): sum(range(10**7))
    """)
    assert pytester.runpytest_inprocess("-p", "pace").ret == 0
    again = pytester.runpytest_inprocess("-p", "pace", "--again", "0.01")
    assert again.ret == 1
    again.assert_outcomes(passed=2)
    again.stdout.fnmatch_lines_random(["too slow without a mark: *::test_slow"])
    again.stdout.no_fnmatch_line("too slow without a mark: *::test_long")
