"""The columns every table shares: how a record becomes text, and which records may be best.

A cell is plain text. A kind of cell that failed shows its status in that kind's leading column; the reason
stands in the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkv.drawing.style import BASELINE
from quantkv.wording import numbers
from quantkv.wording.numbers import DASH, missing

Record = Mapping[str, Any]
MIB = 2**20
REFERENCE_MARK = "°"
RATIO = "÷ Dynamic"


@dataclass(frozen=True)
class Column:
    """``badness`` finds the best of a context (smaller is better); ``short`` is for narrow places."""

    name: str
    header: str
    unit: str
    group: str
    text: Callable[[Record], str]
    badness: Callable[[Record], float | None]
    short: Callable[[Record], str]


def led_by(kind: str, text: Callable[[Record], str]) -> Callable[[Record], str]:
    """The leading column of a kind also tells that its cell failed or was skipped."""

    def cell(record: Record) -> str:
        status = record[f"{kind}_status"]
        return text(record) if missing(status) or status == "ok" else str(status)

    return cell


def _bits(record: Record) -> str:
    packed, cache = (numbers.fixed(record[name], 2) for name in ("bits_packed", "bits_cache"))
    return DASH if packed == cache == DASH else f"{packed} / {cache}"


def _short_bits(record: Record) -> str:
    return _bits(record).replace(" ", "")


def _decode(record: Record) -> str:
    return numbers.significant(record["decode_ms_median"]) + reference_mark(record)


def _rate(record: Record) -> str:
    return numbers.significant(record["decode_tokens_per_s"]) + reference_mark(record)


def _ratio(name: str) -> Callable[[Record], str]:
    return lambda record: numbers.ratio(record[name])


def reference_mark(record: Record) -> str:
    """Set at times of the PyTorch reference engine, which are no speed claim."""
    measured = not missing(record["decode_ms_median"])
    return REFERENCE_MARK if measured and record["speed_engine"] == "reference" else ""


def _perplexity(record: Record) -> str:
    value = record["ppl_ratio"]
    return numbers.fixed(value, 4) if missing(value) or value < 10 else numbers.significant(value)


def _published(record: Record) -> str:
    """The perplexity that others give; measured ones are told by their ratio, which compares."""
    return DASH if missing(record["citation"]) else numbers.fixed(record["perplexity"], 2)


def _delta(record: Record) -> str:
    interval = (record[name] for name in ("delta_nll", "delta_nll_low", "delta_nll_high"))
    return numbers.with_interval(*interval, sign=True)


def _short_delta(record: Record) -> str:
    interval = (record[name] for name in ("delta_nll", "delta_nll_low", "delta_nll_high"))
    return numbers.with_half_width(*interval, sign=True)


def _kl(record: Record) -> str:
    return numbers.compact_interval(record["kl_mean"], record["kl_low"], record["kl_high"])


def _short_kl(record: Record) -> str:
    return numbers.compact(record["kl_mean"])


def _share(name: str) -> Callable[[Record], str]:
    return lambda record: numbers.percent(record[name])


def _memory(record: Record) -> str:
    return DASH if missing(record["held_bytes"]) else numbers.significant(record["held_bytes"] / MIB)


def _claimable(name: str) -> Callable[[Record], float | None]:
    """Times of the reference engine do not compete."""
    return lambda record: None if reference_mark(record) else record[name]


def _distance(name: str, target: float) -> Callable[[Record], float | None]:
    return lambda record: None if missing(record[name]) else abs(record[name] - target)


def _negative(score: Callable[[Record], float | None]) -> Callable[[Record], float | None]:
    def badness(record: Record) -> float | None:
        value = score(record)
        return None if value is None else -value

    return badness


def _plain(name: str) -> Callable[[Record], float | None]:
    return lambda record: record[name]


def _column(
    name: str,
    header: str,
    unit: str,
    text: Callable[[Record], str],
    badness: Callable[[Record], float | None],
    short: Callable[[Record], str] | None = None,
) -> Column:
    kind, _, own = name.partition(".")
    return Column(own, header, unit, kind, text, badness, short or text)


COLUMNS: tuple[Column, ...] = (
    _column("size.bits", "bits", "packed / cache", _bits, _plain("bits_packed"), _short_bits),
    _column("size.memory", "memory", "MiB", led_by("memory", _memory), _plain("held_bytes")),
    _column("size.memory_ratio", "memory", "× 16-bit", _ratio("ratio_to_16bit"), _plain("ratio_to_16bit")),
    _column("speed.decode", "decode", "ms/token", led_by("speed", _decode), _claimable("decode_ms_median")),
    _column(
        "speed.ratio", "decode time", RATIO, _ratio("ratio_to_baseline"), _claimable("ratio_to_baseline")
    ),
    _column("speed.rate", "decode", "tokens/s", _rate, _negative(_claimable("decode_tokens_per_s"))),
    _column("quality.published", "perplexity", "as published", _published, _plain("perplexity")),
    _column("quality.ppl", "perplexity", "ratio", led_by("quality", _perplexity), _distance("ppl_ratio", 1)),
    _column("quality.delta", "ΔNLL", "nats/token", _delta, _distance("delta_nll", 0), _short_delta),
    _column("quality.kl", "KL", "nats/token", _kl, _distance("kl_mean", 0), _short_kl),
    _column("quality.top1", "top-1", "%", _share("top1_agreement"), _distance("top1_agreement", 1)),
    _column("quality.top5", "top-5", "%", _share("top5_agreement"), _distance("top5_agreement", 1)),
)


def shown_columns(records: Sequence[Record]) -> list[Column]:
    """The columns in which at least one record has something to say."""
    return [column for column in COLUMNS if any(column.text(record) != DASH for record in records)]


def competes(record: Record) -> bool:
    """Raw floats would win every quality, unfit formats every size; a simulated one holds no bytes, and what
    others measured is ranked with nothing."""
    raw = record["label"] == BASELINE or record["label"] in ("fp32", "fp16", "bf16", "exact")
    many_bits = not missing(record["bits_packed"]) and record["bits_packed"] >= 16
    return not (raw or many_bits or record["verdict"] == "unfit" or record["simulated"] or record["citation"])
