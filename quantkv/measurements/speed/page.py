"""What a page says and draws of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quantkv.drawing.lines import Curve
from quantkv.drawing.style import BASELINE
from quantkv.measurements.speed.figures import MILLISECONDS
from quantkv.studies.column import Record, reference_mark
from quantkv.studies.curves import curves, with_baseline
from quantkv.studies.page import Chart, OnPage, Sentence, and_names, measured
from quantkv.studies.study import Study
from quantkv.wording import numbers
from quantkv.wording.numbers import missing


def lead(here: Sequence[Record], worst: Mapping[str, str]) -> list[str]:
    """The fastest format, and those whose intervals reach into its own: they are not slower for sure."""
    timed = [r for r in here if not missing(r["ratio_to_baseline"]) and not reference_mark(r)]
    sound = [r for r in timed if r["label"] != BASELINE and worst[r["label"]] != "unfit"]
    if not sound:
        return []
    first = min(sound, key=lambda r: r["ratio_to_baseline"])
    if missing(first["ratio_high"]):
        return ["Too few rounds to rank formats by their decode time."]
    near = [r for r in sound if r is not first and not r["ratio_low"] > first["ratio_high"]]
    text = f"The fastest timed is {first['label']}, at {_speed_ratio(first)} of DynamicCache's decode time"
    return [text + (f"; the intervals do not tell {and_names(near)} from it." if near else ".")]


def sentence(record: Record) -> Sentence | None:
    if missing(record["decode_ms_median"]):
        return None
    time = f"{numbers.significant(record['decode_ms_median'])} ms a step"
    if reference_mark(record):
        return Sentence(f"Decodes at {time}", " on the PyTorch reference engine, which is no speed claim.")
    if missing(record["ratio_to_baseline"]):
        return Sentence(f"Decodes at {time}", ".")
    return Sentence(f"Decodes in {_speed_ratio(record)} × DynamicCache's time", f": {time}.")


def _speed_ratio(record: Record) -> str:
    ends = (record["ratio_low"], record["ratio_high"])
    text = numbers.ratio(record["ratio_to_baseline"])
    return text if any(map(missing, ends)) else f"{text} [{', '.join(numbers.ratio(end) for end in ends)}]"


def limits(study: Study) -> list[str]:
    rows = [row.get("provenance") or {} for row in measured(study, "speed")]
    known = [made.get("machine") or {} for made in rows]
    machines = sorted({str(machine.get("gpu") or machine.get("cpu") or "unknown") for machine in known})
    threads = sorted({str(made.get("threads")) for made in rows if made.get("threads")})
    if not machines:
        return []
    many = "" if threads == ["1"] else "s"
    on = f"{', '.join(machines)} with {', '.join(threads) or 'unknown'} thread{many}"
    return [
        f"Times are those of {on}: ratios carry over to other machines better than milliseconds, not fully."
    ]


def _curves(study: Study) -> list[Curve]:
    return with_baseline(curves(study, MILLISECONDS), study, per_second=False)


def _note(study: Study) -> str:
    return "Median, bars from the 10th to the 90th percentile."


CHART = Chart("decode_ms", "Decode time", "decode (ms per step)", "linear", _curves, _note)
PAGE = OnPage(lead, sentence, (CHART,), limits)
