"""The schema of a sweep file: settings typed, unknown keys refused, formats parsed before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from quantkv.arms.formats import FOLDER, imported_files
from quantkv.errors import QuantKVError
from quantkv.measurements.kind import Kind, kind
from quantkv.plugins import ImportedFile
from quantkv.report.figures import titles
from quantkv.rows.axes import Axes
from quantkv.rows.kinds import measured
from quantkv.rows.settings import NonNegative, OneOrMore, Positive, Section
from quantkv.sweep.reading import apply_overrides, read_yaml
from quantkv.wording.messages import lines
from quantkv.wording.suggestions import not_one_of


def _check_shard(value: str) -> str:
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", value)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"'{value}' is no share; legal: 1/4 for the first of four, up to 4/4")
    return value


class Ray(Section):
    """``workers`` actors with ``gpus`` and ``cpus`` each (left out: as many as the cluster has room for);
    ``address`` of a running cluster, such as auto; ``retries`` of an actor that is lost."""

    workers: Positive | None = None
    gpus: Annotated[float, Field(gt=0)] | None = None
    cpus: Positive = 1
    address: str | None = None
    retries: NonNegative = 3


class Slurm(Section):
    """An array of ``workers`` jobs; ``parameters`` are those of submitit, such as slurm_partition and
    timeout_min. With ``cluster: local`` they are processes of this machine."""

    workers: Positive = 1
    cluster: Literal["slurm", "local"] = "slurm"
    parameters: dict[str, str | int | float | bool | dict[str, str | int]] = Field(default={})


class Run(Section):
    """``shard`` 2/4 measures the second of four shares; ``ray`` and ``slurm`` are for those executors."""

    executor: Literal["local", "ray", "slurm"] = "local"
    on_unsupported: Literal["error", "skip", "exact"] = "error"
    cell_timeout: Positive | None = 600
    out: str = Field(default="results/sweep", min_length=1)
    shard: Annotated[str, AfterValidator(_check_shard)] | None = None
    ray: Ray = Ray()
    slurm: Slurm = Slurm()


def _known_figure(name: Any) -> str:
    if name not in (legal := list(titles())):
        raise ValueError(not_one_of(name, legal))
    return str(name)


class Report(Section):
    """``layers`` draws the inspections found in the results folder; ``together`` asks for one more table and
    one more figure of each kind across models, dtypes or both."""

    figures: OneOrMore[Annotated[str, BeforeValidator(_known_figure)]] = (
        "pareto", "kl", "ppl_ratio", "memory", "decode_ms", "crossover", "retrieval",
    )  # fmt: skip
    width: Literal["one-column", "two-column"] = "one-column"
    files: OneOrMore[Literal["png", "pdf", "svg"]] = ("png", "pdf")
    tables: OneOrMore[Literal["md", "tex", "csv"]] = ("md", "tex", "csv")
    html: bool = True
    together: tuple[Literal["model", "dtype"], ...] = ()


class Sweep(Axes):
    """One sweep, beside the sections of kinds, which ``schema`` adds; a kind left out is not measured."""

    run: Run = Run()
    report: Report = Report()

    @model_validator(mode="after")
    def _something_to_measure(self) -> Sweep:
        if not self.kinds:
            raise ValueError(f"nothing to measure: give {', '.join(measured())}, for example 'memory: {{}}'")
        names = [entry.label for entry in self.formats]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"formats: '{twice}' is given twice; give one of them another name")
        for name in self.kinds:
            self.section(name).check(self)
        return self

    def __reduce__(self) -> Any:
        """Files are imported before the sections of kinds that they bring are made."""
        return _unpickled, (self.imports, self.__getstate__())


def _unpickled(imports: tuple[ImportedFile, ...], state: dict[Any, Any]) -> Sweep:
    sweep = schema().__new__(schema())
    sweep.__setstate__(state)
    return sweep


def schema() -> type[Sweep]:
    """What a sweep file holds: the axes, a section for every kind that is known by now, and how to run it."""
    return _schema(tuple(kind(name) for name in measured()))


@cache
def _schema(kinds: tuple[Kind, ...]) -> type[Sweep]:
    sections: dict[str, Any] = {kind.name: (kind.settings | None, None) for kind in kinds}
    before: Any = create_model("Sections", __base__=Axes, **sections)  # before run and report
    return create_model("Sweep", __base__=(Sweep, before), __module__=__name__)


class Imports(Section):
    """What a file imports, before the rest of it is read: it may be of kinds that are registered there."""

    model_config = ConfigDict(extra="ignore")
    imports: Annotated[Any, BeforeValidator(imported_files)] = Field(None, alias="import")


def validate(
    raw: Mapping[str, Any],
    *,
    where: str = "sweep",
    overrides: Iterable[str] = (),
    folder: Path | None = None,
) -> Sweep:
    """``raw`` as a sweep, or one error with a line for every problem that says where it was written. Relative
    paths are looked for in ``folder`` first."""
    context = {FOLDER: folder} if folder else None
    try:
        Imports.model_validate(dict(raw), context=context)
        return schema().model_validate(dict(raw), context=context)
    except ValidationError as error:
        problems = lines(error, schema())
    sources = {override.partition("=")[0].strip(): f"--set {override}" for override in overrides}
    raise QuantKVError("\n".join(f"{_origin(problem, sources) or where}: {problem}" for problem in problems))


def _origin(problem: str, sources: Mapping[str, str]) -> str | None:
    """The override that gave the setting a problem is about, the last one if there are several."""
    setting = problem.partition(":")[0] + "."
    return next(
        (said for key, said in reversed(list(sources.items())) if setting.startswith(key + ".")), None
    )


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Sweep:
    """The sweep in a YAML file, with ``key=value`` overrides laid over it."""
    given = list(overrides)
    raw = apply_overrides(read_yaml(path), given)
    return validate(raw, where=str(path), overrides=given, folder=Path(path).parent)
