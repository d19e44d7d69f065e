"""One page from result rows: styles, scripts, libraries and data in one file that asks the network nothing.

Everything a user may have named (formats, texts, models, reasons) is escaped by the template, kept as JSON
that no markup can end, and put on the page by the scripts as text only. On top of that the page's own policy
forbids every request and every script but the three in it, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from quantkv.report.html.alerts import alerts
from quantkv.report.html.data import payload
from quantkv.report.html.grid import grids
from quantkv.report.html.index import Results, results
from quantkv.report.html.words import limits, words
from quantkv.rows.row import strict_json
from quantkv.studies.captions import caption, marks
from quantkv.studies.study import Row, Study

HERE = Path(__file__).parent
LIBRARIES = {"D3": "d3.min.js", "Observable Plot": "plot.umd.min.js"}
OWN = ("charts.js", "table.js", "rows.js", "page.js")
LISTED = 3
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(rows: Iterable[Row]) -> str:
    """The page as HTML; equal rows in any order give equal text, and no rows a page that says so."""
    found = results(strict_json(list(rows)))
    scripts = [Markup(_read(f"vendor/{file}")) for file in LIBRARIES.values()]
    scripts.append(Markup("(() => {\n" + "\n".join(_read(file) for file in OWN) + "})();\n"))
    data = payload(found)
    return TEMPLATES.get_template("template.html").render(
        title=_title(found),
        facts=_facts(found),
        sections=[_section(study, found) for study in found.studies],
        alerts=alerts(found),
        grids=grids(found),
        data=data,
        style=Markup(_read("style.css")),
        scripts=scripts,
        policy=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        licences={name: _read(f"vendor/{file.split('.')[0]}.LICENSE") for name, file in LIBRARIES.items()},
    )


def _read(file: str) -> str:
    return (HERE / file).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _section(study: Study, found: Results) -> dict[str, Any]:
    said = {"name": study.title, "words": words(study), "limits": limits(study, found.kinds)}
    return said | {"caption": caption(study), "marks": marks(study)}


def _title(found: Results) -> str:
    models = list(dict.fromkeys(found.subjects))
    return f"{', '.join(models[:LISTED])}{', …' if len(models) > LISTED else ''}"


def _facts(found: Results) -> list[str]:
    """One line under the title: how many rows of what, and the days on which they were measured."""
    counts = [f"{len(found.of_kind(kind))} {kind}" for kind in found.kinds]
    unmeasured = sum(row.get("status") != "ok" for row in found.rows)
    days = sorted({str((row.get("provenance") or {}).get("started") or "")[:10] for row in found.rows} - {""})
    when = f"measured {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    rows = f"{len(found.rows)} rows ({', '.join(counts)})" if counts else "no rows"
    return list(filter(None, (rows, f"{unmeasured} without numbers" if unmeasured else "", when)))
