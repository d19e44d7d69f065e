"""The figures of speed by name."""

from quantkv.measurements.speed.crossover_figure import crossings, crossover, rows_height
from quantkv.measurements.speed.decode_figure import decode_ms, decode_tps
from quantkv.studies.panel import Panel

PANELS = {
    "decode_ms": Panel(decode_ms, ("decode_ms_median", "baseline_ms_median"), "decode time"),
    "decode_tps": Panel(decode_tps, ("decode_tokens_per_s", "baseline_ms_median"), "decode speed"),
    "crossover": Panel(
        crossover,
        holds=lambda study: bool(crossings(study)),
        inches=rows_height,
        interval="ratio_low",
        bars="; bars from the interval of the ratio of times.",
    ),
}
