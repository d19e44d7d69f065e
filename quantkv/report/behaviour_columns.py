"""The columns of the two tables: how a row becomes text, and what it says instead of a number it lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from quantkv.instruments.proportions import SIGNIFICANT
from quantkv.studies.captions import environment, fingerprint, precision
from quantkv.studies.groups import PARTS, Group, Row, part_of
from quantkv.wording import numbers

Section = Mapping[str, Any]


class BehaviourColumn(NamedTuple):
    """`short` is the header for narrow places."""

    header: str
    short: str
    text: Callable[[Section], str]


def _percent(name: str) -> Callable[[Section], str]:
    return lambda section: numbers.percent(section[name])


def _share(which: str) -> Callable[[Section], str]:
    """A share of right answers and its interval, in percent."""

    def text(section: Section) -> str:
        value, low, high = (100 * section[f"exact_match{which}{end}"] for end in ("", "_low", "_high"))
        return f"{value:.0f} [{low:.0f}, {high:.0f}]"

    return text


def _log_prob(section: Section) -> str:
    interval = (section[f"delta_log_prob{end}"] for end in ("", "_low", "_high"))
    return numbers.with_interval(*interval, sign=True, default=3)


def _p_value(section: Section) -> str:
    return numbers.compact(section["p_value"]) if section["conclusive"] else numbers.DASH


def _verdict(section: Section) -> str:
    """So few questions that no answers to them could differ for sure show no equality either."""
    if section["conclusive"] and 2 * 0.5 ** section["n"] >= SIGNIFICANT:
        return "too few questions"
    return section["verdict"] or "inconclusive"


def _kl(section: Section) -> str:
    return numbers.compact_interval(section["kl_mean"], section["kl_low"], section["kl_high"])


def _first_difference(section: Section) -> str:
    return f"{section['first_divergence_median']:g}"


def _diverged(section: Section) -> str:
    return f"{section['diverged']}/{section['prompts']}"


COLUMNS: dict[str, tuple[BehaviourColumn, ...]] = {
    "retrieval": (
        BehaviourColumn("right (%)", "right %", _share("")),
        BehaviourColumn("exact cache (%)", "exact %", _share("_ref")),
        BehaviourColumn("p", "p", _p_value),
        BehaviourColumn("Δ log-prob (nats/answer)", "Δlogp", _log_prob),
        BehaviourColumn("packed reads (%)", "packed %", _percent("packed_read_fraction")),
        BehaviourColumn("verdict", "verdict", _verdict),
    ),
    "generation": (
        BehaviourColumn("KL along the exact text (nats/token)", "KL", _kl),
        BehaviourColumn("top-1 (%)", "top-1 %", _percent("top1_agreement")),
        BehaviourColumn("first difference (median token)", "first diff", _first_difference),
        BehaviourColumn("texts that differ", "differ", _diverged),
        BehaviourColumn("equal tokens (%)", "equal %", _percent("equal_tokens")),
        BehaviourColumn("repeated (%)", "repeat %", _percent("repeated")),
        BehaviourColumn("exact cache repeats (%)", "exact rep. %", _percent("repeated_ref")),
        BehaviourColumn("packed reads (%)", "packed %", _percent("packed_read_fraction")),
    ),
}


def header(group: Group, *, short: bool = False) -> list[str]:
    columns = COLUMNS[group.kind]
    return [PARTS[group.kind], "ctx" if short else "context", "format"] + [
        column.short if short else column.header for column in columns
    ]


def cells(row: Row, *, seeds: bool) -> list[str]:
    """A line of the table; a row without numbers says why in its last cell."""
    asked, columns = row["requested"], COLUMNS[row["kind"]]
    label = f"{asked['format']} (seed {asked['seed']})" if seeds else str(asked["format"])
    start = [part_of(row), str(asked["context"]), label]
    if row["status"] != "ok":
        return [*start, *[numbers.DASH] * (len(columns) - 1), f"{row['status']}: {row['reason']}"]
    return [*start, *(column.text(row[row["kind"]]) for column in columns)]


def lines(group: Group) -> list[list[str]]:
    seeds = len({row["requested"]["seed"] for row in group.rows}) > 1
    return [cells(row, seeds=seeds) for row in group.rows]


def remarks(group: Group) -> list[str]:
    """Why nothing can be concluded from some rows, each said once."""
    said: dict[str, None] = {}
    for row in group.rows:
        if row["status"] == "ok" and (why := row[group.kind].get("inconclusive_because")):
            said[f"inconclusive: {part_of(row)} at {row['requested']['context']}: {why}"] = None
    return list(said)


def caption(group: Group) -> str:
    """How the numbers were made."""
    said = group.protocol
    model = f"{group.model} ({', '.join([*precision(group.rows), *fingerprint(group)])})"
    made_on = environment(group.rows)
    text = f"text {said.get('text')} (sha256 {str(said.get('text_sha256'))[:12]})"
    if group.kind == "generation":
        return (
            f"{model}: {said.get('tokens')} tokens after each of {said.get('prompts')} prompts, "
            f"{text}; KL and top-1 along the exact cache's own text, the rest from texts that each format "
            "and the exact cache generate with the same random numbers; repeated: four tokens seen before. "
            f"{made_on}"
        ).rstrip()
    depths = ", ".join(f"{depth:g}" for depth in said.get("depths") or [])
    return (
        f"{model}: {said.get('samples')} questions at each depth of {depths}, filler {text}; contexts "
        f"prefilled exactly and packed, the question reads them packed, nothing asked for lies in the last "
        f"{said.get('tail')} tokens; right: greedy decoding gives the whole answer, with Wilson 95 % "
        "intervals; p: exact paired test against the exact cache on the same questions. "
        f"{made_on}"
    ).rstrip()
