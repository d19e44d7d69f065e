"""What a table or a figure must say of itself: model, weights, text, protocol, machine, engine, versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from quantkv.studies.columns import RATIO, REFERENCE_MARK
from quantkv.studies.drift import drifted
from quantkv.studies.names import INTERVALS, TITLES
from quantkv.studies.study import (
    CAUTION_KL,
    UNFIT_KL,
    Row,
    Study,
    citation,
    is_baseline,
    made_of,
    protocol_of,
    requested,
)
from quantkv.wording.numbers import compact, missing
from quantkv.wording.parts import Parts, machine_words, short

HASH_DIGITS = 12
LISTED = 4
FILLS = {"prefill": "by a prefill", "synthetic": "with random keys and values"}
BOS = {"per_window": "BOS in each window", "text": "one BOS before the text"}
WITHIN = "Contexts are timed one after the other: compare times within a context."
BITS = (
    "Bits per element: packed, of a full page; cache, of all that the cache holds at its context. The Pareto "
    "figure draws bits_cache_16 of table.csv: those of the cache, its exact tokens counted at 16 bits."
)
PACKAGES = ("quantkv", "torch", "transformers")


class Told(Protocol):
    """A study, or a group of rows of retrieval or generation."""

    @property
    def identity(self) -> Parts: ...
    @property
    def told(self) -> tuple[str, ...]: ...


def caption(study: Study, kinds: Iterable[str] | None = None) -> str:
    """Plain sentences about how the study's numbers, or only those of some kinds, were made."""
    return " ".join(sentences(study, kinds))


def sentences(study: Study, kinds: Iterable[str] | None = None) -> list[str]:
    if source := citation(study.rows[0]):
        return [f"{study.model}. From {source}; not measured here, so not to be ranked with other tables."]
    wanted = tuple(kinds) if kinds is not None else ("quality", "speed", "memory")
    rows = [row for row in study.rows if row["kind"] in wanted]
    made = [*precision(study.rows), *fingerprint(study), f"batch {study.batch}"]
    parts = [f"{study.model} ({', '.join(made)})."]
    makers: dict[str, Callable[[list[Row]], str]] = {"quality": _quality, "speed": _speed, "memory": _memory}
    for kind, maker in makers.items():
        of_kind = [row for row in rows if row["kind"] == kind]
        if of_kind:
            parts.append(maker(of_kind))
        if kind == "speed" and of_kind:
            parts.append(drifted(study))
    notes = (f"{note}." for note in (*study.notes, *study.warnings))
    return list(filter(None, (*parts, _policy(rows), environment(rows), *notes)))


def figure_title(name: str, study: Study) -> str:
    """What a figure of the study shows, with intervals where it has any."""
    number, end = INTERVALS.get(name, ("", ""))
    if number and study.frame[number].notna().any():
        return TITLES[name].removesuffix(".") + end
    return TITLES[name]


def marks(study: Study) -> list[str]:
    """The meaning of the marks, the bits and the ratio that this study's table uses, a sentence each."""
    records = study.records()
    verdicts = {record["verdict"] for record in records}
    said = {
        f"{REFERENCE_MARK} ran on the PyTorch reference engine: no speed claim.": any(
            record["speed_engine"] == "reference" for record in records
        ),
        BITS: any(not missing(record["bits_cache_16"]) for record in records),
        f"{RATIO}: decode time ÷ that of DynamicCache (lower is faster).": any(
            not missing(record["ratio_to_baseline"]) for record in records
        ),
        f"✗ unfit: mean KL of {UNFIT_KL:g} nats or more.": "unfit" in verdicts,
        f"! caution: mean KL of {CAUTION_KL:g} nats or more.": "caution" in verdicts,
        "? flagged: see the notes.": "flagged" in verdicts,
    }
    return [sentence for sentence, used in said.items() if used]


def precision(rows: Sequence[Row]) -> list[str]:
    """The weights' own precision, that of the computation, and the checkpoint's revision."""
    weights = _list(made_of(row, "weights") for row in rows)
    revision = _list(short(made_of(row, "revision") or "") for row in rows)
    dtype = _list(requested(row, "dtype") for row in rows)
    known = {"weights": weights, "computed in": dtype, "revision": revision}
    return [f"{word} {value}" for word, value in known.items() if value]


def fingerprint(found: Told) -> list[str]:
    """That of config and weights, where it sets tables apart."""
    told = "fingerprint" in found.told
    return [f"fingerprint {short(found.identity['fingerprint']) or 'unknown'}"] if told else []


def _quality(rows: list[Row]) -> str:
    protocol = [protocol_of(row) for row in rows]
    text = _list(p.get("text") for p in protocol)
    digest = _list(str(p["text_sha256"])[:HASH_DIGITS] for p in protocol if p.get("text_sha256"))
    parts = [f"Quality: text {text}" + (f" (sha256 {digest})" if digest else "")]
    parts.append(f"prefill {_list(p.get('prefill') for p in protocol)}")
    windows, score = (_list(p.get(name) for p in protocol) for name in ("windows", "score"))
    scored = [row["quality"] for row in rows if row.get("quality")]
    intervals = any(not missing(section.get("kl_low")) for section in scored)
    few = ", too few to rank formats by" if scored and not intervals else ""
    parts.append(f"{windows} {'window' if windows == '1' else 'windows'} of {score} scored tokens{few}")
    if bos := _list(p.get("bos") for p in protocol):
        parts.append(BOS.get(bos, f"BOS {bos}"))
    if preset := _list(p.get("preset") for p in protocol):
        parts.append(f"protocol {preset}")
    against = "KL and ΔNLL against the exact cache" + ", intervals over windows" * intervals
    return "; ".join([", ".join(parts), against, *_bf16_scale(rows)]) + "."


def _bf16_scale(rows: list[Row]) -> list[str]:
    """For a sense of relevance: what the model loses in bfloat16, by context where that differs."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        if (scale := (row.get("quality") or {}).get("scale_bf16_kl")) is not None:
            found.setdefault(compact(scale), []).append(requested(row, "context"))
    said = [f"{scale} at {_list(sorted(set(contexts)))}" for scale, contexts in found.items()]
    return [f"KL of the model in bf16 {', '.join(said)}"] if said else []


def _speed(rows: list[Row]) -> str:
    protocol = [protocol_of(row) for row in rows]
    rounds, block = (_list(p.get(name) for p in protocol) for name in ("rounds", "block"))
    engines = _list((row.get("effective") or {}).get("engine") for row in rows if not is_baseline(row))
    parts = [f"Speed: {rounds} rounds of {block} decode steps interleaved with DynamicCache, medians"]
    parts.append(f"cache filled {_list(FILLS.get(str(p.get('fill')), p.get('fill')) for p in protocol)}")
    threads = _list(_threads(row) for row in rows)
    parts.append(f"{threads} thread" + ("" if threads == "1" else "s"))
    if engines:
        parts.append(f"engine {engines}")
    several = len({requested(row, "context") for row in rows}) > 1
    return ", ".join(parts) + "." + f" {WITHIN}" * several


def _threads(row: Row) -> Any:
    return protocol_of(row).get("threads") or (row.get("provenance") or {}).get("threads")


def _memory(rows: list[Row]) -> str:
    counters = _list((row.get("memory") or {}).get("counter") for row in rows)
    peaks = f" (peaks by {counters})" if counters else ""
    return f"Memory: bytes the cache holds, each cell in a fresh process{peaks}; ratios to a 16-bit cache."


def _policy(rows: list[Row]) -> str:
    """Sinks, window and flush chunk where all quantized formats share them; else that they differ."""
    effective = [row.get("effective") or {} for row in rows if not is_baseline(row) and _is_packed(row)]
    policies = {tuple(e.get(name) for name in ("sinks", "recent_key", "flush_key")) for e in effective}
    uniform = {
        (e.get("recent_key"), e.get("flush_key")) == (e.get("recent_value"), e.get("flush_value"))
        for e in effective
    }
    if not policies or None in next(iter(policies)):
        return ""
    if len(policies) == 1 and uniform == {True}:
        sinks, recent, flush = next(iter(policies))
        return f"Exact tokens: {sinks} sinks and the last {recent}, packed {flush} at a time."
    return "Sinks, recent window and flush chunk are each format's own."


def _is_packed(row: Row) -> bool:
    effective = row.get("effective") or {}
    return bool(effective.get("layers_quantized")) and (
        effective.get("flush_key"),
        effective.get("recent_key"),
    ) != (1, 0)


def environment(rows: Iterable[Row]) -> str:
    """Machine and versions of rows, empty where none says."""
    provenance = [row["provenance"] for row in rows if row.get("provenance")]
    machines = _list(machine_words(made.get("machine") or {}) for made in provenance)
    versions = ((name, _list(made.get(name) for made in provenance)) for name in PACKAGES)
    software = ", ".join(f"{name} {version}" for name, version in versions if version)
    return f"Machine: {'; '.join(filter(None, (machines, software)))}." if machines else ""


def _list(values: Iterable[Any]) -> str:
    distinct = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    shown = ", ".join(distinct[:LISTED])
    return shown + (", …" if len(distinct) > LISTED else "")
