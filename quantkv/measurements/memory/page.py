"""What a page says and draws of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from quantkv.measurements.memory.columns import MIB
from quantkv.measurements.memory.figures import HELD
from quantkv.studies.column import Record
from quantkv.studies.columns import competes
from quantkv.studies.curves import curves
from quantkv.studies.page import Chart, Guides, OnPage, Sentence, guide
from quantkv.studies.study import Study
from quantkv.wording import numbers
from quantkv.wording.numbers import missing


def lead(here: Sequence[Record], worst: Mapping[str, str]) -> list[str]:
    sound = [record for record in here if competes(record) and worst[record["label"]] != "unfit"]
    weighed = [record for record in sound if not missing(record["ratio_to_16bit"])]
    if not weighed:
        return []
    least = min(weighed, key=lambda r: r["ratio_to_16bit"])
    share = numbers.ratio(least["ratio_to_16bit"])
    return [f"The smallest cache weighed among sound formats is that of {least['label']}, {share} × 16 bits."]


def sentence(record: Record) -> Sentence | None:
    bits = record["bits_cache"]
    in_bits = "" if missing(bits) else f"{numbers.fixed(bits, 2)} bits per element"
    if missing(record["held_bytes"]):
        return Sentence(f"Takes {in_bits}", "; not weighed.") if in_bits and not record["simulated"] else None
    size = f"{numbers.significant(record['held_bytes'] / MIB)} MiB"
    held = f"Holds {numbers.ratio(record['ratio_to_16bit'])} × a 16-bit cache"
    return Sentence(held, f": {', '.join(filter(None, (size, in_bits)))}.")


def _guides(study: Study) -> Guides:
    return guide(study, "baseline_16bit_bytes", 1 / MIB)


def _note(study: Study) -> str:
    dotted = " The dotted line is a cache of 16 bits per element." if _guides(study) else ""
    return f"Bytes the cache holds.{dotted}"


CHART = Chart("memory", "Memory", "cache held (MiB)", "log", partial(curves, metric=HELD), _note, _guides)
PAGE = OnPage(lead, sentence, (CHART,))
