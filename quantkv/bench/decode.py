"""Decoding and prefilling a whole model with each cache, beside DynamicCache in the same race.

The protocol is that of `quantkv.measurements.speed.run`: blocks of 8 steps, the first dropped, arms in random
order in every round, ratios round by round.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from quantkv.arms.arm import BASELINE, failure
from quantkv.bench.attention import FORMATS
from quantkv.bench.machine import MachineLimits, Probe, instruction_set
from quantkv.bench.report import make_report, parse_formats
from quantkv.bench.rounds import Progress, check_counts, check_threads, quiet, ratios, refused, spread
from quantkv.bench.stock import stock_lanes
from quantkv.bench.work import ModelWork, cache_bytes
from quantkv.errors import QuantKVError, first_line
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.measurements.speed.run import FILLS, Lane, Race, feed_tokens
from quantkv.measurements.speed.section import speed_section
from quantkv.spec.specs import CacheSpec
from quantkv.wording.numbers import significant

BLOCK = 8
FLUSHES = 2
LEAST_STEPS = 16
"""Steps over which a cache's `update` is timed where its flush chunks are short."""
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Batch 1. `prefill` 0 times no prefill; `stock` adds the quantized caches of transformers."""

    model: str
    formats: tuple[str, ...] = FORMATS
    contexts: tuple[int, ...] = (512, 6000, 32000)
    threads: int = 1
    rounds: int = 10
    fill: str = "synthetic"
    prefill: int = 6000
    prefill_rounds: int = 3
    stock: bool = True
    dtype: str = "float32"
    isa: str | None = None
    seed: int = 0

    def check(self) -> None:
        check_counts(rounds=self.rounds, contexts=min(self.contexts, default=0))
        check_threads(self.threads)
        check_counts(prefill_rounds=self.prefill_rounds, prefill=max(1, self.prefill))
        if self.prefill < 0:
            raise QuantKVError(f"--prefill must be at least 0, not {self.prefill}")
        if self.fill not in FILLS:
            raise QuantKVError(f"--fill must be one of {', '.join(FILLS)}, not {self.fill!r}")


def bench_decode(
    settings: DecodeSettings, progress: Progress = quiet, finished: Progress = quiet
) -> dict[str, Any]:
    """Time decoding at every context, then a prefill; `finished` is told the times of each as it is done."""
    from quantkv.models import load_model

    settings.check()
    specs = parse_formats(settings.formats)
    model, _ = load_model(settings.model, dtype=settings.dtype)
    bench = _Bench(model, specs, settings, progress)
    with (
        instruction_set(settings.isa),
        timing.threads(settings.threads),
        torch.inference_mode(),
        refused("this benchmark"),
    ):
        probe = Probe()
        before = probe.rates([settings.threads])
        for context in settings.contexts:
            bench.decode(context)
            done = [row for row in bench.rows if row["context"] == context]
            finished(in_short(f"{context} cached tokens", done))
        if settings.prefill:
            bench.prefill()
            finished(in_short(f"prefill of {settings.prefill} tokens", bench.prefill_rows))
        limits = MachineLimits(before, probe.rates([settings.threads]), probe.method)
        for row in (*bench.rows, *bench.prefill_rows):
            add_limit(row, limits, settings.threads)
        add_growth(bench.rows)
        rows, prefills = bench.rows, bench.prefill_rows
        return make_report("decode", settings, probe, limits, rows, bench.flags, prefill=prefills)


class _Bench:
    """The races of one model; rows and flags gather here."""

    def __init__(
        self, model: Any, specs: dict[str, CacheSpec], settings: DecodeSettings, progress: Progress
    ) -> None:
        self.model, self.specs, self.settings, self.progress = model, specs, settings, progress
        self.work = ModelWork.of(model)
        self.rows: list[Row] = []
        self.prefill_rows: list[Row] = []
        self.flags: list[str] = stock_lanes()[1] if settings.stock else []

    def lanes(self) -> list[Lane]:
        stock = stock_lanes()[0] if self.settings.stock else []
        ours = [Lane(text, spec) for text, spec in self.specs.items()]
        return [Lane(BASELINE, BASELINE), *ours, *stock]

    def race(self, context: int, longest: int, fill: str) -> Race:
        """A race over random tokens; the model's own limit on positions is kept where it is prefilled."""
        if fill == "prefill":
            hf.check_length(self.model, longest)
        noise = torch.Generator().manual_seed(self.settings.seed)
        ids = torch.randint(self.model.config.get_text_config().vocab_size, (longest,), generator=noise)
        dice = random.Random(self.settings.seed)
        sync = timing.default_sync(self.model.device)
        return Race(self.model, feed_tokens(ids, 1, longest), context, fill, dice, sync)

    def decode(self, context: int) -> None:
        settings, lanes = self.settings, self.lanes()
        decoded = settings.rounds * BLOCK
        race = self.race(context, context + decoded + self._most_update_steps(), settings.fill)
        self._note_length(context + decoded)

        def told(what: str, done: int, total: int) -> None:
            self.progress(f"{context} tokens, {what} {done + 1} of {total}")

        with _said_plainly(settings.model, context):
            race.prepare(lanes, told)
            touched = {lane.label: self._touched(lane, context) for lane in lanes if lane.error is None}
            race.decode_rounds(settings.rounds, BLOCK, told)
            for lane in lanes:
                self.rows.append(self._row(race, lane, touched.get(lane.label)))
                lane.cache = None

    def prefill(self) -> None:
        """Prefill with every cache in turn; the first round warms up and does not count."""
        tokens, lanes = self.settings.prefill, self.lanes()
        race = self.race(tokens, tokens, "prefill")
        race.racing, race.baseline = lanes, lanes[0]
        with _said_plainly(self.settings.model, tokens):
            for index in range(self.settings.prefill_rounds + 1):
                self.progress(f"prefill of {tokens} tokens, {index} of {self.settings.prefill_rounds}")
                for lane in race.in_turn():
                    race.attempt(lane, race.prefill)
                    lane.cache = None
        self.prefill_rows = [self._prefill_row(lane, lanes[0]) for lane in lanes]

    def _touched(self, lane: Lane, context: int) -> int:
        itemsize = self.model.dtype.itemsize
        return self.work.weight_bytes + cache_bytes(lane.cache, self.work, context, itemsize)

    def _row(self, race: Race, lane: Lane, touched: int | None) -> Row:
        row: Row = {"name": lane.label, "context": race.context} | _status(lane)
        if lane.error is not None:
            self.flags.append(f"{lane.label} failed at {race.context} tokens: {row['reason']}")
            return row
        engine = getattr(lane.cache, "engine", "sdpa")
        self.flags += lane_flags(race, lane, engine, self.flags)
        row |= {
            "engine": engine,
            "ms": spread(lane.timings.steps_ms),
            "rounds_ms": lane.timings.rounds_ms,
            "faster_than_dynamic": ratios(race.baseline.timings.rounds_ms, lane.timings.rounds_ms),
            "bytes": touched,
            "multiply_adds": self.work.step(race.context),
            "update": self._update(race, lane),
        }
        return row

    def _update(self, race: Race, lane: Lane) -> Row | None:
        """The share of a step that `update` takes; None for stock caches, whose `update` decodes as well."""
        if not isinstance(lane.spec, CacheSpec) and lane.spec != BASELINE:
            return None
        start = race.context + self.settings.rounds * BLOCK
        found = update_share(race, lane, start, update_steps(lane.spec))
        if found is None:
            self.flags.append(f"{lane.label} failed at {race.context} tokens, timing updates: {lane.error}")
        return found

    def _prefill_row(self, lane: Lane, baseline: Lane) -> Row:
        row: Row = {"name": lane.label, "tokens": self.settings.prefill} | _status(lane)
        if lane.error is not None:
            self.flags.append(f"{lane.label} failed in prefill: {row['reason']}")
            return row
        ms, baseline_ms = ([1000 * s for s in x.timings.prefill[1:]] for x in (lane, baseline))
        return row | {
            "ms": spread(ms),
            "rounds_ms": ms,
            "time_to_dynamic": ratios(ms, baseline_ms),
            "bytes": self.work.weight_bytes,
            "multiply_adds": self.work.prefill(self.settings.prefill),
        }

    def _most_update_steps(self) -> int:
        return max(update_steps(spec) for spec in (BASELINE, *self.specs.values()))

    def _note_length(self, tokens: int) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and tokens > limit:
            self.flags.append(
                f"{tokens} tokens are beyond the model's limit of {limit}: times alone mean anything"
            )


def in_short(what: str, rows: Sequence[Row]) -> str:
    """The medians of one race in a line."""
    times = (f"{row['name']} {significant(row['ms']['median'])}" for row in rows if row["status"] == "ok")
    return f"{what}, ms: {', '.join(times)}"


@contextmanager
def _said_plainly(model: str, tokens: int) -> Iterator[None]:
    """A model that the baseline itself cannot run there, in one line."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        raise QuantKVError(
            f"{model} cannot run {tokens} tokens with DynamicCache: {first_line(error)}"
        ) from error


def lane_flags(race: Race, lane: Lane, engine: str, said: Sequence[str]) -> list[str]:
    """A lane's flags with where they were raised; what holds for the machine is said once per context, and
    the number of rounds by the report itself."""
    where: dict[str, Any] = {
        "context": race.context,
        "batch": 1,
        "bandwidth": race.bandwidth,
        "fill": race.fill,
    }
    section = speed_section(lane.timings, race.baseline.timings, engine=engine, **where)
    named = (
        f"at {race.context}: {flag}"
        if flag.startswith("memory")
        else f"{lane.label} at {race.context}: {flag}"
        for flag in section["flags"]
        if not flag.startswith("only ")
    )
    return [flag for flag in named if flag not in said]


def _status(lane: Lane) -> Row:
    if lane.error is None:
        return {"status": "ok", "reason": None}
    failed = failure("speed", lane.error, lane.seconds)
    return {"status": failed["status"], "reason": failed["reason"]}


def update_steps(spec: Any) -> int:
    """Steps that hold two flush chunks of every tensor of a cache."""
    if not isinstance(spec, CacheSpec):
        return LEAST_STEPS
    flushes = [t.flush for s in (spec, *(s for _, s in spec.layers)) for t in (s.key, s.value)]
    return max(LEAST_STEPS, FLUSHES * math.lcm(*flushes))


def update_share(race: Race, lane: Lane, start: int, steps: int) -> Row | None:
    """Decode on, timing the cache's `update` calls apart: ms of a step spent in them, and the share. None
    where the lane fails."""
    whole: list[float] = []
    with clocked_updates(lane.cache) as spent, timing.no_garbage_collection():
        for position in range(start, start + steps):
            token = race.feed[:, position : position + 1]
            begin = time.perf_counter()
            race.attempt(lane, lambda lane, token=token: race.step(lane, token))
            whole.append(time.perf_counter() - begin)
    if lane.error is not None:
        return None
    return {
        "ms_per_step": 1000 * sum(spent) / steps,
        "share": sum(spent) / sum(whole),
        "steps": steps,
        "step_ms_mean": 1000 * sum(whole) / steps,
    }


@contextmanager
def clocked_updates(cache: Any) -> Iterator[list[float]]:
    """Seconds of each `update` call of a cache."""
    spent: list[float] = []
    plain = cache.update

    def update(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = plain(*args, **kwargs)
        spent.append(time.perf_counter() - begin)
        return result

    cache.update = update
    try:
        yield spent
    finally:
        del cache.update


def add_limit(row: Row, limits: MachineLimits, threads: int) -> None:
    """The least time this machine needs for a row's bytes and multiply-adds, and how far the row is away."""
    if row["status"] != "ok":
        return
    limit = 1000 * limits.seconds(row["bytes"], row["multiply_adds"], threads)
    row |= {"limit_ms": limit, "k": row["ms"]["median"] / limit if row["ms"]["median"] else None}


def add_growth(rows: Sequence[Row]) -> None:
    """How much a step slows down between the first and each later context, in ms and as a share of what
    DynamicCache slows down."""
    found = {(row["name"], row["context"]): row["ms"]["median"] for row in rows if row["status"] == "ok"}
    first = rows[0]["context"]
    for row in (row for row in rows if row["status"] == "ok"):
        grown, other = (
            found[name, row["context"]] - found[name, first] if (name, first) in found else None
            for name in (row["name"], BASELINE)
        )
        later = row["context"] != first and grown is not None
        row["growth_ms"] = grown if later else None
        row["growth_to_dynamic"] = grown / other if later and other else None
