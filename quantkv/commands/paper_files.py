"""Every figure and table of a folder of studies, made again from their rows.

A study is a folder with result rows in ``rows/``. Its ``paper.yaml``, where there is one, says what to make,
with the settings of ``report:`` in a sweep; the files go to ``paper/`` beside the rows. Rows that have not
changed give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quantkv.errors import QuantKVError
from quantkv.report.figures import titles
from quantkv.report.pictures import inspections_in
from quantkv.report.write import write_report
from quantkv.rows.files import read_rows
from quantkv.sweep.config import Report
from quantkv.sweep.reading import read_yaml
from quantkv.wording.messages import lines

ROWS, SETTINGS, OUT = "rows", "paper.yaml", "paper"


def write_paper(
    folder: Path,
    *,
    warn: Callable[[str], None] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """All studies below ``folder``, in the order of their names; returns the paths written.

    A study in which a setting, a row or a file is wrong costs no other: ``warn`` is told of each, and without
    it they are an error once all are done. ``tell`` is told, a line each, of folders without rows and of
    figures that nothing was measured for. Raises QuantKVError where there is no study.
    """
    places = sorted(path.parent for path in folder.rglob(ROWS) if path.is_dir())
    studies = [place for place in places if any((place / ROWS).glob("*.json"))]
    if not studies:
        raise QuantKVError(f"no study in {folder}: a study is a folder with result rows in {ROWS}/")
    for place in (place for place in places if place not in studies):
        tell(f"{place}: no rows in {ROWS}/, nothing made")
    written, problems = list[Path](), list[str]()
    for study in studies:
        try:
            written += _write_study(study, tell)
        except QuantKVError as error:
            problems.append(f"{study}: {error}")
    if problems:
        (warn or _refuse)("\n".join(problems))
    return written


def settings_of(study: Path) -> Report:
    """What to make of a study: its ``paper.yaml``, or else everything that can be made."""
    path = study / SETTINGS
    given = read_yaml(path) if path.exists() else {}
    try:
        return Report.model_validate({"figures": tuple(titles()), "html": False, **given})
    except ValidationError as error:
        raise QuantKVError("\n".join(f"{path}: {line}" for line in lines(error, Report))) from None


def _write_study(study: Path, tell: Callable[[str], None]) -> list[Path]:
    options: dict[str, Any] = settings_of(study).model_dump()
    options["tell"] = lambda line: tell(f"{study}: {line}")
    rows = read_rows(study / ROWS, warn=_refuse)
    return write_report(rows, study / OUT, inspections=inspections_in(study), **options)


def _refuse(problem: str) -> None:
    """A damaged row would be missing from a table without a word."""
    raise QuantKVError(problem)
