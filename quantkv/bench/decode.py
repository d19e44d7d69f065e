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
from typing import Any

import torch

from quantkv.arms.arm import BASELINE, failure
from quantkv.bench.machine import Probe, instruction_set
from quantkv.bench.report import Report, Row, make_report
from quantkv.bench.rounds import Progress, quiet, refused
from quantkv.bench.settings import DecodeSettings
from quantkv.bench.work import ModelWork, cache_bytes
from quantkv.errors import QuantKVError, UnsupportedError, first_line
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.instruments.statistics import ratios, spread
from quantkv.instruments.windows import feed_tokens
from quantkv.measurements.speed.run import Lane, Race
from quantkv.measurements.speed.section import speed_section
from quantkv.peers import parse_peer
from quantkv.peers.versions import check_installed
from quantkv.spec.specs import CacheSpec, parse_spec
from quantkv.wording.numbers import significant

BLOCK = 8
STOCK = ("quanto-int4", "hqq-int4")
"""The quantized caches that transformers ships; each needs a package of its own."""
FLUSHES = 2
LEAST_STEPS = 16
"""Steps over which `update` is timed where the flush chunks of a cache are short."""


def bench_decode(settings: DecodeSettings, progress: Progress = quiet) -> Report:
    """Time decoding at every context, then a prefill; `progress` is told the times of each."""
    from quantkv.models import load_model

    settings.check()
    specs = {text: parse_spec(text) for text in settings.formats}
    model, _ = load_model(settings.model, dtype=settings.dtype)
    bench = _Bench(model, specs, settings, progress)
    rows: list[Row] = []
    prefills: list[Row] = []
    with (
        instruction_set(settings.isa),
        timing.threads(settings.threads),
        torch.inference_mode(),
        refused("this benchmark"),
    ):
        probe = Probe([settings.threads])
        for context in settings.contexts:
            rows += (done := bench.decode(context))
            progress(in_short(f"{context} cached tokens", done), done=True)
        if settings.prefill:
            prefills = bench.prefill(settings.prefill)
            progress(in_short(f"prefill of {settings.prefill} tokens", prefills), done=True)
        add_growth(rows)
        return make_report("decode", settings, probe, rows, bench.flags, prefill=prefills)


class _Bench:
    """The races of one model; flags gather here."""

    def __init__(
        self, model: Any, specs: dict[str, CacheSpec], settings: DecodeSettings, progress: Progress
    ) -> None:
        self.model, self.settings, self.progress = model, settings, progress
        self.work = ModelWork.of(model)
        self.flags: list[str] = []
        self.formats: dict[str, Any] = {BASELINE: BASELINE, **specs}
        if settings.stock:
            self._add_stock()

    def _add_stock(self) -> None:
        """Those whose package is installed, and a flag for each other."""
        for peer in map(parse_peer, STOCK):
            try:
                check_installed(peer)
                self.formats[peer.label] = peer
            except UnsupportedError as error:
                self.flags.append(f"{peer.label} left out: {error}")

    def lanes(self) -> list[Lane]:
        return [Lane(label, spec) for label, spec in self.formats.items()]

    def race(self, context: int, longest: int, fill: str) -> Race:
        """A race over random tokens; the model's own limit on positions is kept where it is prefilled."""
        if fill == "prefill":
            hf.check_length(self.model, longest)
        noise = torch.Generator().manual_seed(self.settings.seed)
        ids = torch.randint(self.model.config.get_text_config().vocab_size, (longest,), generator=noise)
        dice = random.Random(self.settings.seed)
        sync = timing.default_sync(self.model.device)
        return Race(self.model, feed_tokens(ids, 1, longest), context, fill, dice, sync)

    def decode(self, context: int) -> list[Row]:
        """A row per cache: steps at `context` cached tokens, then what their updates take."""
        settings, lanes, itemsize = self.settings, self.lanes(), self.model.dtype.itemsize
        decoded = context + settings.rounds * BLOCK
        race = self.race(context, decoded + max(map(update_steps, self.formats.values())), settings.fill)
        self._note_length(decoded)

        def told(what: str, done: int, total: int) -> None:
            self.progress(f"{context} tokens, {what} {done + 1} of {total}")

        with _said_plainly(settings.model, context):
            race.prepare(lanes, told)
            touched = {
                lane.label: self.work.weight_bytes + cache_bytes(lane.cache, self.work, context, itemsize)
                for lane in lanes
                if lane.error is None
            }
            race.decode_rounds(settings.rounds, BLOCK, told)
            return [self._decode_row(race, lane, touched) for lane in lanes]

    def prefill(self, tokens: int) -> list[Row]:
        """Prefill with every cache in turn; the first round warms up and does not count."""
        lanes, rounds = self.lanes(), self.settings.prefill_rounds
        race = self.race(tokens, tokens, "prefill")
        race.racing, race.baseline = lanes, lanes[0]
        with _said_plainly(self.settings.model, tokens):
            for index in range(rounds + 1):
                self.progress(f"prefill of {tokens} tokens, {index} of {rounds}")
                for lane in race.in_turn():
                    race.attempt(lane, race.prefill)
                    lane.cache = None
        return [self._prefill_row(tokens, lane, lanes[0]) for lane in lanes]

    def _begun(self, lane: Lane, place: str, **where: int) -> Row:
        """What every row says; that a lane failed is flagged as well."""
        row: Row = {"name": lane.label, **where, "status": "ok", "reason": None}
        if lane.error is not None:
            failed = failure("speed", lane.error, lane.seconds)
            row |= {key: failed[key] for key in ("status", "reason")}
            self.flags.append(f"{lane.label} failed {place}: {row['reason']}")
        return row

    def _decode_row(self, race: Race, lane: Lane, touched: dict[str, int]) -> Row:
        row = self._begun(lane, f"at {race.context} tokens", context=race.context)
        if lane.error is not None:
            return row
        engine = getattr(lane.cache, "engine", "sdpa")
        self.flags += lane_flags(race, lane, engine, self.flags)
        row |= {
            "engine": engine,
            "ms": spread(lane.timings.steps_ms),
            "rounds_ms": lane.timings.rounds_ms,
            "faster_than_dynamic": ratios(race.baseline.timings.rounds_ms, lane.timings.rounds_ms),
            "bytes": touched[lane.label],
            "multiply_adds": self.work.step(race.context),
            "update": self._update(race, lane),
        }
        lane.cache = None
        return row

    def _update(self, race: Race, lane: Lane) -> Row | None:
        """The share of a step that `update` takes; None for stock caches, whose `update` decodes as well."""
        if not isinstance(lane.spec, CacheSpec) and lane.spec != BASELINE:
            return None
        found = update_share(race, lane, race.context + self.settings.rounds * BLOCK)
        if found is None:
            self.flags.append(f"{lane.label} failed at {race.context} tokens, timing updates: {lane.error}")
        return found

    def _prefill_row(self, tokens: int, lane: Lane, baseline: Lane) -> Row:
        row = self._begun(lane, "in prefill", tokens=tokens)
        if lane.error is not None:
            return row
        ms, baseline_ms = ([1000 * s for s in x.timings.prefill[1:]] for x in (lane, baseline))
        return row | {
            "ms": spread(ms),
            "rounds_ms": ms,
            "time_to_dynamic": ratios(ms, baseline_ms),
            "bytes": self.work.weight_bytes,
            "multiply_adds": self.work.prefill(tokens),
        }

    def _note_length(self, tokens: int) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and tokens > limit:
            beyond = f"{tokens} tokens are beyond the model's limit of {limit}"
            self.flags.append(f"{beyond}: times alone mean anything")


def update_steps(spec: Any) -> int:
    """Steps that hold two flush chunks of every tensor of a cache."""
    if not isinstance(spec, CacheSpec):
        return LEAST_STEPS
    flushes = [t.flush for s in (spec, *(s for _, s in spec.layers)) for t in (s.key, s.value)]
    return max(LEAST_STEPS, FLUSHES * math.lcm(*flushes))


def update_share(race: Race, lane: Lane, start: int) -> dict[str, float] | None:
    """Decode on, timing the cache's `update` calls apart: ms of a step spent in them, and the share. None
    where the lane fails."""
    whole: list[float] = []
    steps = update_steps(lane.spec)
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
        trouble = f"{model} cannot run {tokens} tokens with DynamicCache"
        raise QuantKVError(f"{trouble}: {first_line(error)}") from error


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
