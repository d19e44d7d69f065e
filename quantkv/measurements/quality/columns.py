"""Bits and quality in the table of formats."""

from __future__ import annotations

from quantkv.studies.column import Column, Record, distance, led_by, percent
from quantkv.wording import numbers
from quantkv.wording.numbers import DASH, missing

DELTA = ("delta_nll", "delta_nll_low", "delta_nll_high")


def _bits(record: Record) -> str:
    packed, cache = (numbers.fixed(record[name], 2) for name in ("bits_packed", "bits_cache"))
    return DASH if packed == cache == DASH else f"{packed} / {cache}"


def _perplexity(record: Record) -> str:
    value = record["ppl_ratio"]
    return numbers.fixed(value, 4) if missing(value) or value < 10 else numbers.significant(value)


def _published(record: Record) -> str:
    """The perplexity that others give; measured ones are told by their ratio, which compares."""
    return DASH if missing(record["citation"]) else numbers.fixed(record["perplexity"], 2)


def _delta(record: Record) -> str:
    return numbers.with_interval(*(record[name] for name in DELTA), sign=True)


def _tight_delta(record: Record) -> str:
    return numbers.with_half_width(*(record[name] for name in DELTA), sign=True)


def _kl(record: Record) -> str:
    return numbers.compact_interval(record["kl_mean"], record["kl_low"], record["kl_high"])


COLUMNS = (
    Column(name="bits", header="bits", unit="packed / cache", group="size", value="bits_packed", text=_bits,
           short=lambda record: _bits(record).replace(" ", ""), best="fewest bits"),
    Column(name="published", header="perplexity", unit="as published", group="quality", value="perplexity",
           text=_published),
    Column(name="ppl", header="perplexity", unit="ratio", group="quality", value="ppl_ratio",
           text=led_by("quality", _perplexity), best="perplexity ratio closest to 1",
           badness=distance("ppl_ratio", 1), ends=DELTA[1:]),
    Column(name="delta", header="ΔNLL", unit="nats/token", group="quality", value="delta_nll", text=_delta,
           tight=_tight_delta, best="ΔNLL closest to 0", badness=distance("delta_nll", 0), ends=DELTA[1:]),
    Column(name="kl", header="KL", unit="nats/token", group="quality", value="kl_mean", text=_kl,
           short=lambda record: numbers.compact(record["kl_mean"]), best="lowest KL",
           badness=distance("kl_mean", 0), ends=("kl_low", "kl_high")),
    Column(name="top1", header="top-1", unit="%", group="quality", value="top1_agreement",
           text=percent("top1_agreement")),
    Column(name="top5", header="top-5", unit="%", group="quality", value="top5_agreement",
           text=percent("top5_agreement")),
)  # fmt: skip
