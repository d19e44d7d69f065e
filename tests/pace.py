"""What each test costs: the slowest stand in every report, and a slow one needs a mark that says why.

Counted is the processor time of the call, that of processes it waited for included: with other work on the
machine, clocks lie, and processors take longer too. So what takes longer than `--limit SECONDS` is run once
more, alone, and fails where it does so again. On a slow machine the limit is longer, and where others keep
the machine busy, nothing is said.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import subprocess
import sys
from collections.abc import Generator
from itertools import pairwise

import pytest

SHOWN = 20
WORTH_SHOWING = 0.5
MAY_BE_SLOW = {"second", "long"}
BUSY = 2.0
"""Processes that wait for a processor, for each there is: then caches are shared by too many."""
USUAL_BIT = 0.03
"""Seconds that a bit of work takes where the limit was set."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--limit", type=float, metavar="SECONDS", help="unmarked tests that take longer fail")
    parser.addoption("--alone", type=float, metavar="SECONDS", help="the same, at the first try")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # in workers of xdist nobody would read it
        config.pluginmanager.register(Pace(config), "pace-of-tests")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the first test would import for all the others is no time of its own."""
    if session.config.getoption("--alone") and "torch" in sys.modules:
        for name in ("matplotlib.pyplot", "pandas", "transformers.models.llama.modeling_llama"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    before = seconds()
    try:
        yield
    finally:
        took = seconds() - before
        item.user_properties.append(("seconds", took))
    limit = item.config.getoption("--alone")
    if limit and took > limit and took > limit * slowness():
        pytest.fail(f"takes {took:.1f} s: make it quicker, or mark it long(why)", pytrace=False)


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
        self.limit: float = config.getoption("--limit") or 0.0
        self.took: dict[str, float] = {}
        self.unmarked: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.took[report.nodeid] = dict(report.user_properties)["seconds"]
            if report.passed and not MAY_BE_SLOW & set(report.keywords):
                self.unmarked.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        slow = [name for name in self.unmarked if self.took[name] > self.limit] if self.limit else []
        if slow and os.getloadavg()[0] < BUSY * (os.cpu_count() or 1):
            command = [sys.executable, "-m", "pytest", "-q", "--alone", str(self.limit), *slow]
            done = subprocess.run(command, cwd=session.config.rootpath)
            session.exitstatus = session.exitstatus or done.returncode

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self.took, key=self.took.__getitem__, reverse=True)[:SHOWN]
        if shown := [name for name in slowest if self.took[name] >= WORTH_SHOWING]:
            terminalreporter.section("the slowest, in seconds of a processor")
        for name in shown:
            terminalreporter.line(f"{self.took[name]:6.1f} {name}")
