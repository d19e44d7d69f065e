"""Decoding and prefilling a whole model with each cache, beside DynamicCache in the same race.

The protocol is that of `quantkv.measurements.speed.run`: blocks of 8 steps, the first dropped, arms in random
order in every round, ratios round by round.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from quantkv.arms.arm import BASELINE, failure
from quantkv.bench.machine import Probe, instruction_set
from quantkv.bench.report import make_report, parse_formats
from quantkv.bench.rounds import Progress, add_limit, quiet, refused
from quantkv.bench.settings import DecodeSettings
from quantkv.bench.stock import stock_lanes
from quantkv.bench.updates import update_share, update_steps
from quantkv.bench.work import ModelWork, cache_bytes
from quantkv.errors import QuantKVError, first_line
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.instruments.statistics import ratios, spread
from quantkv.instruments.windows import feed_tokens
from quantkv.measurements.speed.run import Lane, Race
from quantkv.measurements.speed.section import speed_section
from quantkv.spec.specs import CacheSpec
from quantkv.wording.numbers import significant

BLOCK = 8
Row = dict[str, Any]


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
        probe = Probe([settings.threads])
        for context in settings.contexts:
            bench.decode(context)
            done = [row for row in bench.rows if row["context"] == context]
            finished(in_short(f"{context} cached tokens", done))
        if settings.prefill:
            bench.prefill()
            finished(in_short(f"prefill of {settings.prefill} tokens", bench.prefill_rows))
        limits, rows, prefills = probe.limits(), bench.rows, bench.prefill_rows
        for row in (*rows, *prefills):
            if row["status"] == "ok":
                add_limit(row, limits, settings.threads)
        add_growth(rows)
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
    section = speed_section(
        lane.timings,
        race.baseline.timings,
        context=race.context,
        batch=1,
        bandwidth=race.bandwidth,
        engine=engine,
        fill=race.fill,
    )
    flags = [flag for flag in section["flags"] if not flag.startswith("only ")]
    whose = ["" if flag.startswith("memory") else f"{lane.label} " for flag in flags]
    placed = [f"{who}at {race.context}: {flag}" for who, flag in zip(whose, flags)]
    return [flag for flag in placed if flag not in said]


def _status(lane: Lane) -> Row:
    if lane.error is None:
        return {"status": "ok", "reason": None}
    failed = failure("speed", lane.error, lane.seconds)
    return {"status": failed["status"], "reason": failed["reason"]}


def add_growth(rows: Sequence[Row]) -> None:
    """How much a step slows down between the first and each later context, in ms and as a share of what
    DynamicCache slows down."""
    ran, first = [row for row in rows if row["status"] == "ok"], rows[0]["context"]
    medians = {(row["name"], row["context"]): row["ms"]["median"] for row in ran}

    def growth(name: str, context: int) -> float | None:
        if context == first or (name, first) not in medians:
            return None
        return medians[name, context] - medians[name, first]

    for row in ran:
        grown, other = (growth(name, row["context"]) for name in (row["name"], BASELINE))
        row["growth_ms"] = grown
        row["growth_to_dynamic"] = grown / other if grown is not None and other else None
