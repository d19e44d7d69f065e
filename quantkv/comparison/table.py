"""A comparison on a terminal: what differs, cell by cell, then what could not be compared and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from quantkv.comparison.outcome import Comparison, Pair
from quantkv.studies.changes import BETTER, SAME, UNCLEAR, UNJUDGED, WORSE, Change
from quantkv.wording.numbers import DASH, compact, compact_interval, significant, with_interval
from quantkv.wording.parts import asked_of, differing, short, subject_of, title, told
from quantkv.wording.streams import bare_table

VERDICTS = (WORSE, BETTER, UNCLEAR, SAME, UNJUDGED)
STYLES = {WORSE: "bold red", BETTER: "green"}
TOLD_ELSEWHERE = ("seed", "prefill", "task", "mode")
"""Settings that stand beside the context or the kind."""
CHANCE = 0.025
"""The share of 95 % intervals that lie above no change where nothing changed."""


def comparison_lines(found: Comparison) -> Iterator[RenderableType]:
    """Tables and lines, in the order they are read. Numbers that are the same are counted, not listed."""
    yield f"A: {found.a}"
    yield f"B: {found.b}"
    yield ""
    if any(change.verdict != SAME for pair in found.pairs for change in pair.changes):
        yield _table(found.pairs)
        yield ""
    of = _subjects(found)
    otherwise = [(f"asked for otherwise, {', '.join(pair.differences)}", pair) for pair in found.near]
    differing = [(words, pair) for pair in found.pairs for words in pair.differences]
    yield from _grouped("not compared", ((pair.obstacle, pair) for pair in found.pairs), of)
    yield from _grouped("differs", differing, of)
    yield from _grouped("not compared", otherwise, of)
    near = {id(row) for pair in found.near for row in (pair.a, pair.b)}
    for name, rows in (("A", found.only_a), ("B", found.only_b)):
        if alone := [row for row in rows if id(row) not in near]:
            yield f"only in {name}: {', '.join(_only(alone, of))}"
    for origin in found.origins:
        yield f"{origin.field}: {origin.a} → {origin.b} ({origin.pairs} of {len(found.pairs)} pairs)"
    yield _summary(found)


def _table(pairs: Sequence[Pair]) -> Table:
    where = [name for name in differing(pair.a for pair in pairs) if name not in TOLD_ELSEWHERE]
    intervals = any(change.low is not None for pair in pairs for change in pair.changes)
    words = ("kind", *where, "format", "context", "number")
    numbers = ("A", "B", "change [95 %]" if intervals else "change")
    judged = ("verdict", "from")
    table = bare_table([*words, *numbers, *judged], left=[*words, *judged])
    for pair in pairs:
        for change in pair.changes:
            if change.verdict != SAME:
                table.add_row(*map(Text, _cells(pair, change, where)), style=STYLES.get(change.verdict))
    return table


def _cells(pair: Pair, change: Change, where: Sequence[str]) -> list[str]:
    cell = pair.cell()
    kind = " ".join(filter(None, (cell["kind"], cell["part"])))
    asked = asked_of(pair.a)
    place = [kind, *(short(asked.get(name, "")) for name in where), _formats(pair), _context(cell)]
    numbers = [_value(change, change.a), _value(change, change.b), _moved(change)]
    metric = f"{change.metric} ({change.unit})" if change.unit else change.metric
    return [*place, metric, *numbers, change.verdict, change.how]


def _formats(pair: Pair) -> str:
    cell = pair.cell()
    return " → ".join(dict.fromkeys((str(cell["format_a"]), str(cell["format_b"]))))


def _context(cell: dict[str, Any]) -> str:
    extras = [f"batch {cell['batch']}"] if cell["batch"] not in (1, None) else []
    extras += [f"seed {cell['seed']}"] if cell["seed"] else []
    extras += [cell["prefill"]] if cell["prefill"] not in ("exact", None) else []
    return ", ".join([str(cell["context"]), *extras])


def _value(change: Change, value: float | None) -> str:
    if value is not None and change.unit == "bytes":
        return f"{value:,.0f}"
    return compact(value, 3)


def _moved(change: Change) -> str:
    """Bytes whole, factors as such, differences with their sign."""
    if change.change is None:
        return DASH
    if change.factor:
        bounds = "" if change.low is None else f" [{significant(change.low)}, {significant(change.high)}]"
        return f"× {significant(change.change)}{bounds}"
    if change.unit == "bytes":
        return f"{change.change:+,.0f}"
    if change.metric.startswith("kl"):
        return compact_interval(change.change, change.low, change.high)
    return with_interval(change.change, change.low, change.high, sign=True)


def _grouped(title: str, said: Iterable[tuple[str | None, Pair]], of: Mapping[int, str]) -> Iterator[str]:
    """Each thing said once, with the cells it is said of."""
    places: dict[str, list[Pair]] = {}
    for words, pair in said:
        if words is not None:
            places.setdefault(words, []).append(pair)
    for words, pairs in places.items():
        cell = pairs[0].cell()
        first = f"{cell['kind']} {_formats(pairs[0])}{of[id(pairs[0].a)]} at {_context(cell)}"
        shown = first if len(pairs) == 1 else f"{first} and {len(pairs) - 1} more"
        yield f"{title}: {words} ({shown})"


def _subjects(found: Comparison) -> dict[int, str]:
    """`` of llama · bfloat16`` by the id of a row; nothing where all are of one model."""
    rows = [row for pair in (*found.pairs, *found.near) for row in (pair.a, pair.b)]
    rows += [*found.only_a, *found.only_b]
    subjects = [{name: subject_of(row)[name] for name in ("model", "dtype")} for row in rows]
    names = told(subjects)
    return {id(row): f" of {title(own, names)}" if names else "" for row, own in zip(rows, subjects)}


def _only(rows: Iterable[Any], of: Mapping[int, str]) -> Iterator[str]:
    """By kind and format, so that a whole missing format is a few words."""
    counts = Counter((row["kind"], row["requested"]["format"], of[id(row)]) for row in rows)
    for (kind, name, subject), count in counts.items():
        yield f"{kind} {name}{subject}" + (f" × {count}" if count > 1 else "")


def _summary(found: Comparison) -> str:
    counts = found.verdicts
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    changes = (change for pair in found.pairs for change in pair.changes)
    judged = sum(change.low is not None and change.verdict != SAME for change in changes)
    chance = (
        f"; of {judged} intervals about {CHANCE * judged:.1g} look worse by chance alone" if judged else ""
    )
    count = "1 pair" if len(found.pairs) == 1 else f"{len(found.pairs)} pairs"
    return f"{count} of rows: {', '.join(parts) or 'no number compared'}{chance}"
