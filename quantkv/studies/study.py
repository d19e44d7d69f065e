"""From result rows to studies: what was measured of one model under one protocol, per format and context.

Kinds of cell are measured apart and meet here, by spec, context and seed. Rows that may not be
compared (another model, text, prefill, machine, metric version) never meet: they become studies of their own,
or are left out with a note.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from quantkv.drawing.style import BASELINE, rank
from quantkv.instruments.verdict import CAUTION_KL, UNFIT_KL
from quantkv.studies.kind import reported, studied
from quantkv.wording.numbers import missing
from quantkv.wording.parts import (
    SEPARATOR,
    Parts,
    fingerprint_of,
    said,
    short,
    subject_of,
    title,
    told_of_each,
    words,
)

Row = Mapping[str, Any]
Record = dict[str, Any]
Conditions = tuple[str, str, str]

FLAG_SEPARATOR = "; "
JUDGE = "quality"
"""The kind whose numbers say whether a format damages the model."""
OTHER_WEIGHTS = "other weights were measured under this name too: {own} here, {others} in tables of their own"

IDENTITY = (
    "model", "revision", "weights", "dtype", "attn", "batch", "label", "format", "spec", "context", "seed",
)  # fmt: skip


def columns() -> tuple[str, ...]:
    """Of a frame that every study has."""
    metrics = [name for kind in studied() for name in reported(kind).metrics]
    outcome = [f"{kind}_{word}" for kind in studied() for word in ("status", "reason", "engine")]
    return (*IDENTITY, *metrics, "verdict", "flags", "simulated", "citation", *outcome)


@dataclass(frozen=True)
class Study:
    """One comparison: ``frame`` has a record per format, context and seed, made from ``rows``.

    ``identity`` is what every row of it shares, ``told`` the names of those parts that other studies do not
    share, ``title`` says them in words, and ``slug`` in a file's name.
    """

    identity: Parts
    frame: pd.DataFrame
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    title: str = ""
    slug: str = ""

    @property
    def model(self) -> str:
        return self.identity["model"]

    @property
    def batch(self) -> int:
        return int(self.identity["batch"])

    def records(self) -> list[Record]:
        records: list[Record] = self.frame.to_dict("records")
        return records


def studies(rows: Iterable[Row]) -> list[Study]:
    """The rows split into comparisons, in the order of model, batch and protocol."""
    kinds = studied()
    usable = [row for row in rows if row.get("kind") in kinds]
    return named([study for base in split(usable, _base) for study in _of_base(base)])


def _of_base(rows: Sequence[Row]) -> Iterator[Study]:
    """The studies of one model in one precision."""
    checkpoints = by_weights(rows)
    for fingerprint, own in checkpoints.items():
        others = [short(other) or "unknown" for other in checkpoints if other != fingerprint]
        warnings = (OTHER_WEIGHTS.format(own=short(fingerprint) or "unknown", others=", ".join(others)),)
        for wanted, group in _protocol_groups(own):
            parts = _parts(group[0], wanted) | {"fingerprint": fingerprint}
            yield _study(group, parts, warnings if others else ())


def summary_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """All studies in one frame with every number in full precision, and a column for each part that only some
    studies share."""
    frames = []
    for study in studies(rows):
        names = [name for name in study.told if name not in columns()]
        told = {name.replace(".", "_"): study.identity.get(name) for name in names}
        frames.append(study.frame.assign(**told))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(columns()))


def requested(row: Row, name: str) -> Any:
    return (row.get("requested") or {}).get(name)


def cell_of(row: Row) -> tuple[Any, ...]:
    """Where a row stands in a study: spec, context, seed."""
    spec = requested(row, "spec") or requested(row, "format")
    return spec, requested(row, "context"), requested(row, "seed")


def is_baseline(row: Row) -> bool:
    return "dynamic" in (requested(row, "format"), requested(row, "spec"))


def citation(row: Row) -> str | None:
    """Where an imported row is from; None for what was measured here."""
    made = row.get("provenance") or {}
    return str(made["citation"]) if made.get("source") == "external" else None


def made_of(row: Row, name: str) -> str | None:
    """The checkpoint's own ``weights`` or ``revision``: as found when it was loaded, else as asked for."""
    return (row.get("provenance") or {}).get(name) or requested(row, name)


def protocol_of(row: Row) -> Mapping[str, Any]:
    protocol = row.get("protocol") or {}
    inner = protocol.get(row["kind"])
    return inner if isinstance(inner, Mapping) else protocol


def verdict_of(record: Record) -> str:
    """How loudly a row must warn about its quality: by its KL first, then by any flag."""
    kl: Any = record["kl_mean"]
    if not missing(record["citation"]):
        return ""
    if not missing(kl) and kl >= CAUTION_KL:
        return "unfit" if kl >= UNFIT_KL else "caution"
    return "flagged" if f"{JUDGE}: " in record["flags"] else ""


def _is_ok(row: Row) -> bool:
    return row.get("status") == "ok"


def _base(row: Row) -> tuple[Any, ...]:
    """What tables never mix: another model, another precision, numbers of others."""
    return *(requested(row, name) for name in ("model", "revision", "dtype", "batch")), citation(row)


def split(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[list[Row]]:
    """Rows of one key together, in the order of their keys."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_canonical(key(row)), []).append(row)
    return [groups[name] for name in sorted(groups)]


def _conditions(row: Row) -> Conditions:
    """Attention, protocol and device: equal, beside the context, in any two cells that may be compared."""
    provenance = row.get("provenance") or {}
    device = {"device": provenance.get("device")}
    if reported(row["kind"]).timed:
        device |= {"threads": provenance.get("threads"), "machine": provenance.get("machine")}
    attn = "" if is_baseline(row) else str(requested(row, "attn"))
    return attn, _canonical(protocol_of(row)), _canonical(device)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def by_weights(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of one name by the fingerprint of what was loaded under it; those that never loaded anything stand
    with each."""
    known = {fingerprint_of(row) for row in rows} - {""}
    if len(known) < 2:
        return {next(iter(known), ""): list(rows)}
    measured = {fingerprint_of(row) for row in rows if _is_ok(row)}
    return {
        own: [row for row in rows if fingerprint_of(row) == own or not (fingerprint_of(row) or _is_ok(row))]
        for own in sorted(known | measured)
    }


def _protocol_groups(rows: Sequence[Row]) -> Iterator[tuple[dict[str, Conditions | None], list[Row]]]:
    """A group per combination of the kinds' conditions; a cell that fits several stands in each."""
    values: list[list[Conditions | None]] = []
    for kind in studied():
        values.append([*_condition_values([row for row in rows if row["kind"] == kind])] or [None])
    for conditions in itertools.product(*values):
        wanted = dict(zip(studied(), conditions))
        yield wanted, [row for row in rows if _fits(row, wanted[row["kind"]])]


def _parts(row: Row, wanted: Mapping[str, Conditions | None]) -> dict[str, str]:
    """What sets a study apart: what it is of, and the conditions of each kind."""
    parts = subject_of(row) | {"batch": str(requested(row, "batch") or 1), "citation": citation(row) or ""}
    for kind, conditions in wanted.items():
        if conditions is not None:
            attn, protocol, device = conditions
            own = {"attn": attn} | json.loads(protocol) | json.loads(device)
            parts |= {f"{kind}.{name}": said(value) for name, value in own.items() if value not in (None, "")}
    return parts


def _condition_values(rows: Sequence[Row]) -> list[Conditions]:
    """The distinct conditions of one kind; the baseline and failed cells that fit a study open none."""
    measured = [row for row in rows if _is_ok(row)]
    formats = [row for row in measured if not is_baseline(row)]
    found = {_conditions(row) for row in formats or measured}
    protocols = {protocol for _, protocol, _ in found}
    stray = {_conditions(row) for row in rows if not is_baseline(row) and protocol_of(row)}
    return sorted(found | {own for own in stray if own[1] not in protocols})


def _fits(row: Row, wanted: Conditions | None) -> bool:
    if wanted is None:
        return True
    attn, protocol, device = _conditions(row)
    if attn and attn != wanted[0]:
        return False
    if not _is_ok(row) and (not protocol_of(row) or protocol == wanted[1]):
        return True
    return (protocol, device) == wanted[1:]


def _study(rows: Sequence[Row], identity: Parts, warnings: tuple[str, ...]) -> Study:
    current, notes = _newest_metrics(rows)
    labels = labels_of(current)
    cells: dict[tuple[Any, ...], Record] = {}
    for row in sorted(current, key=preference):
        cell = cell_of(row)
        record = cells.setdefault(cell, _identity(row, labels[cell[0]]))
        if record[f"{row['kind']}_status"] is None:
            _add(record, row)
    for record in cells.values():
        record["verdict"] = verdict_of(record)
    bits = {r["label"]: r["bits_packed"] for r in cells.values() if not missing(r["bits_packed"])}
    ordered = sorted(
        cells.values(), key=lambda r: (r["context"], rank(r["label"], bits.get(r["label"])), r["seed"])
    )
    return Study(identity, _frame(ordered), tuple(current), notes, warnings)


def _newest_metrics(rows: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    kept: list[Row] = []
    notes: list[str] = []
    for kind in studied():
        of_kind = [row for row in rows if row["kind"] == kind]
        newest = max((_metric_version(row) for row in of_kind), default=0)
        current = [row for row in of_kind if _metric_version(row) == newest]
        kept += current
        if len(current) < len(of_kind):
            notes.append(f"{len(of_kind) - len(current)} {kind} rows of older metric versions are left out")
    return kept, tuple(notes)


def _metric_version(row: Row) -> int:
    return int(((row.get("provenance") or {}).get("metrics") or {}).get(row["kind"], 0))


def preference(row: Row) -> tuple[Any, ...]:
    """Of two rows of the same cell a measured one wins, then the newer one (sorted last to first by time)."""
    started = str((row.get("provenance") or {}).get("started") or "")
    return not _is_ok(row), tuple(-ord(character) for character in started), str(row.get("key"))


def labels_of(rows: Sequence[Row]) -> dict[str, str]:
    """A name per spec: the format as typed if it stands for one spec only, else the spec itself."""
    typed: dict[str, set[str]] = {}
    specs: dict[str, set[str]] = {}
    marks: dict[str, str] = {}
    for row in rows:
        spec = cell_of(row)[0]
        typed.setdefault(spec, set()).add(requested(row, "format") or spec)
        specs.setdefault(requested(row, "format") or spec, set()).add(spec)
        if (row.get("effective") or {}).get("simulated"):
            marks[spec] = " (simulated)"
        if citation(row):
            marks[spec] = " (external)"
    labels = {}
    for spec, names in typed.items():
        name = min(names, key=lambda name: (len(name), name))
        if "dynamic" in (name, spec):
            name = BASELINE
        elif len(specs[name]) != 1:
            name = spec
        labels[spec] = name + marks.get(spec, "")
    return labels


def _identity(row: Row, label: str) -> Record:
    record: Record = dict.fromkeys(columns())
    record |= {name: requested(row, name) for name in IDENTITY if name != "label"}
    record |= {name: made_of(row, name) for name in ("revision", "weights")}
    record |= {"citation": citation(row)}
    return record | {"label": label, "flags": "", "verdict": "", "simulated": False}


def _add(record: Record, row: Row) -> None:
    kind = row["kind"]
    own, others = reported(kind).metrics, columns()
    effective, values = row.get("effective") or {}, row.get(kind) or {}
    record |= {f"{kind}_status": row.get("status"), f"{kind}_reason": row.get("reason")}
    record[f"{kind}_engine"] = effective.get("engine")
    record["simulated"] = record["simulated"] or bool(effective.get("simulated"))
    record |= {name: record[name] or made_of(row, name) for name in ("revision", "weights")}
    for name, value in values.items():
        if isinstance(value, bool | int | float | str) and (name in own or name not in others):
            record[name] = value
    flags = [f"{kind}: {flag}" for flag in values.get("flags") or []]
    record["flags"] = FLAG_SEPARATOR.join(filter(None, (record["flags"], *flags)))


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    extra = sorted({name for record in records for name in record} - set(columns()))
    frame = pd.DataFrame(list(records), columns=[*columns(), *extra])
    for name in (name for kind in studied() for name in reported(kind).metrics):
        frame[name] = pd.to_numeric(frame[name])
    return frame


def named(found: Sequence[Study]) -> list[Study]:
    """Titles and slugs that tell the studies apart; numbered where nothing does."""
    each = told_of_each([study.identity for study in found])
    titles = _distinct([title(study.identity, names) for study, names in zip(found, each)], SEPARATOR)
    slugs = _distinct([_slug(study.identity, names) for study, names in zip(found, each)], "-")
    return [
        replace(study, told=tuple(names), title=own, slug=slug)
        for study, names, own, slug in zip(found, each, titles, slugs)
    ]


def _slug(own: Parts, names: Iterable[str]) -> str:
    """``llama-bfloat16-b1``, and in words the other parts that only some studies share."""
    said = [_last(own["model"]), own["dtype"], f"b{own['batch']}"]
    more = [name for name in names if name not in ("model", "dtype", "batch") and own.get(name)]
    said += [words(name, _last(own[name])) for name in more]
    return "-".join(filter(None, (re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in said)))


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _distinct(names: Sequence[str], separator: str) -> list[str]:
    """Names that occur again get a number."""
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [name if n == 1 else f"{name}{separator}{n}" for name, n in zip(names, counts)]
