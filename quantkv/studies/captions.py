"""What a table or a figure must say of itself: model, weights, text, protocol, machine, engine, versions."""

from __future__ import annotations

from collections.abc import Iterable

from quantkv.studies.column import RATIO, REFERENCE_MARK
from quantkv.studies.groups import Group
from quantkv.studies.kind import reported, studied
from quantkv.studies.study import CAUTION_KL, UNFIT_KL, Row, Study, citation, is_baseline, made_of, requested
from quantkv.wording.numbers import missing
from quantkv.wording.parts import listed, machine_words, short

BITS = (
    "Bits per element: packed, of a full page; cache, of all that the cache holds at its context. The Pareto "
    "figure draws bits_cache_16 of table.csv: those of the cache, its exact tokens counted at 16 bits."
)
POLICY = ("sinks", "recent_key", "flush_key", "recent_value", "flush_value")
PACKAGES = ("quantkv", "torch", "transformers")


def caption(study: Study, kinds: Iterable[str] | None = None) -> str:
    """Plain sentences about how the study's numbers, or only those of some kinds, were made."""
    return " ".join(sentences(study, kinds))


def sentences(study: Study, kinds: Iterable[str] | None = None) -> list[str]:
    if source := citation(study.rows[0]):
        return [f"{study.model}. From {source}; not measured here, so not to be ranked with other tables."]
    wanted = studied() if kinds is None else tuple(kinds)
    rows = [row for row in study.rows if row["kind"] in wanted]
    made = [*checkpoint(study), f"batch {study.batch}"]
    parts = [f"{study.model} ({', '.join(made)})."]
    for kind in map(reported, wanted):
        of_kind = [row for row in rows if row["kind"] == kind.name]
        parts += [kind.caption(of_kind), kind.remark(study)] if of_kind else []
    notes = (f"{note}." for note in (*study.notes, *study.warnings))
    return list(filter(None, (*parts, _policy(rows), environment(rows), *notes)))


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


def checkpoint(found: Study | Group) -> list[str]:
    """The weights' own precision, that of the computation, the checkpoint's revision, and the fingerprint
    where that sets tables apart."""
    weights = listed(made_of(row, "weights") for row in found.rows)
    revision = listed(short(made_of(row, "revision") or "") for row in found.rows)
    dtype = listed(requested(row, "dtype") for row in found.rows)
    known = {"weights": weights, "computed in": dtype, "revision": revision}
    if "fingerprint" in found.told:
        known["fingerprint"] = short(found.identity["fingerprint"]) or "unknown"
    return [f"{word} {value}" for word, value in known.items() if value]


def _policy(rows: list[Row]) -> str:
    """Sinks, window and flush chunk where all quantized formats share them; else that they differ."""
    effective = [row.get("effective") or {} for row in rows if not is_baseline(row)]
    packed = [e for e in effective if e.get("layers_quantized")]
    policies = {tuple(e.get(name) for name in POLICY) for e in packed}
    policies = {policy for policy in policies if policy[1:3] != (0, 1)}  # all of it packed: raw floats
    if not policies or None in next(iter(policies))[:3]:
        return ""
    sinks, recent, flush, *of_values = next(iter(policies))
    if len(policies) == 1 and [recent, flush] == of_values:
        return f"Exact tokens: {sinks} sinks and the last {recent}, packed {flush} at a time."
    return "Sinks, recent window and flush chunk are each format's own."


def environment(rows: Iterable[Row]) -> str:
    """Machine and versions of rows, empty where none says."""
    provenance = [row["provenance"] for row in rows if row.get("provenance")]
    machines = listed(machine_words(made.get("machine") or {}) for made in provenance)
    versions = ((name, listed(made.get(name) for made in provenance)) for name in PACKAGES)
    software = ", ".join(f"{name} {version}" for name, version in versions if version)
    return f"Machine: {'; '.join(filter(None, (machines, software)))}." if machines else ""
