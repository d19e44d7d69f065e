"""What each test costs: the slowest stand in every report, and a slow one needs a mark that says why.

Counted is the processor time of the call, that of processes it waited for included: with other work on the
machine, clocks lie. No test asserts a time. `--again SECONDS` runs what took longer in the last run once more
and fails the run where it does so again without a mark; on a slow machine the limit is longer.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import pairwise

import pytest

SHOWN = 20
WORTH_SHOWING = 0.5
MAY_BE_SLOW = ("second", "long")
LAST = "quantkv/seconds"
USUAL_BIT = 0.03
"""Seconds that a bit of work takes where the limit was set."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", type=float, metavar="SECONDS", help="only tests that took longer last time")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # in workers of xdist nobody would read it
        config.pluginmanager.register(Pace(config), "pace-of-tests")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = seconds()
    yield
    item.user_properties.append(("seconds", seconds() - before))


def seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def slowness() -> float:
    """How much longer a bit of work takes here; 1 where it takes less."""
    times = [seconds()]
    for _ in range(5):
        sum(i * i for i in range(1_000_000))
        times.append(seconds())
    return max(1.0, min(b - a for a, b in pairwise(times)) / USUAL_BIT)


class Pace:
    def __init__(self, config: pytest.Config) -> None:
        again: float | None = config.getoption("--again")
        self.cache, self.limit = config.cache, again and again * slowness()
        self.took: dict[str, float] = {}
        self.slow: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.limit:
            last = self.cache.get(LAST, {})
            items[:] = [item for item in items if last.get(item.nodeid, 0.0) > self.limit]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            took = self.took[report.nodeid] = dict(report.user_properties)["seconds"]
            if self.limit and took > self.limit and not set(MAY_BE_SLOW) & set(report.keywords):
                self.slow.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.limit:
            self.cache.set(LAST, self.took)
        elif self.slow or not self.took:
            session.exitstatus = int(bool(self.slow))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self.took, key=self.took.__getitem__, reverse=True)[:SHOWN]
        if shown := [name for name in slowest if self.took[name] >= WORTH_SHOWING]:
            terminalreporter.section("the slowest, in seconds of a processor")
        for name in shown:
            terminalreporter.line(f"{self.took[name]:6.1f} {name}")
        for name in self.slow:
            terminalreporter.line(f"too slow without a mark: {name}", red=True)
