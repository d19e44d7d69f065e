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


@pytest.mark.long("starts pytest")
def test_a_test_that_is_slow_twice_needs_a_mark(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # of the process that runs the slow ones again
    pytester.makeconftest("pytest_plugins = ['pace']")
    pytester.makepyfile("""
        import pathlib, pytest
        def test_quick(): pass
        def test_slow(): sum(range(10**7))
        def test_slow_once():
            if not pathlib.Path("once").exists():
                pathlib.Path("once").touch()
                sum(range(10**7))
        @pytest.mark.long("on purpose")
        def test_long(): sum(range(10**7))
    """)
    assert pytester.runpytest_inprocess().ret == 0
    (pytester.path / "once").unlink()
    capfd.readouterr()
    limited = pytester.runpytest_inprocess("--limit", "0.05")
    limited.assert_outcomes(passed=4)
    again = capfd.readouterr().out
    assert limited.ret == 1 and "1 failed, 1 passed" in again and "::test_slow - " in again
    assert "s: make it quicker, or mark it long(why)" in again
    monkeypatch.setattr("os.getloadavg", lambda: (999.0, 0.0, 0.0))
    assert pytester.runpytest_inprocess("--limit", "0.05").ret == 0
