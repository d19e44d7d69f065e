"""The schema of a sweep file: settings typed, unknown keys refused, formats parsed before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from quantkv.arms.formats import FormatEntry
from quantkv.arms.paths import FOLDER, imported_files, located
from quantkv.data import BUILT_IN
from quantkv.errors import QuantKVError
from quantkv.measurements.quality.protocols import Protocol, filled
from quantkv.measurements.retrieval.questions import DEPTHS, PROMPTS, SAMPLES
from quantkv.measurements.retrieval.tasks import TAIL, check_room, task_names
from quantkv.models.names import DTYPES, is_built_in
from quantkv.plugins import ImportedFile, imported
from quantkv.report.figures import titles
from quantkv.spec.specs import CacheSpec
from quantkv.sweep.source import apply_overrides, read_yaml
from quantkv.wording.messages import lines
from quantkv.wording.suggestions import not_one_of

T = TypeVar("T")
MEASURED = ("quality", "retrieval", "generation", "speed", "memory")
"""The kinds in the order they are measured: memory drops the model, so it comes last."""

TEXTS = "give python-docs, a path, or {hf: ID, name: CONFIG, split: test, column: text}"
PREFILLS = ("exact", "final", "stream", "chunk:<tokens>")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _unique(values: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(value for i, value in enumerate(values) if value not in values[:i])


def _check_prefill(value: str) -> str:
    if value in PREFILLS[:3] or re.fullmatch(r"chunk:[1-9]\d*", value):
        return value
    raise ValueError(not_one_of(value, PREFILLS))


def _whole_name(value: Any) -> Any:
    """``bf16`` as ``bfloat16``: what a row is asked for is written in one way."""
    found = DTYPES.get(value) if isinstance(value, str) else None
    return value if found is None else str(found).removeprefix("torch.")


Dtype = Annotated[Literal["float32", "bfloat16", "float16", "float64", "auto"], BeforeValidator(_whole_name)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
Prefill = Annotated[str, AfterValidator(_check_prefill)]
OneOrMore = Annotated[tuple[T, ...], BeforeValidator(_as_list), Field(min_length=1), AfterValidator(_unique)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelEntry(Section):
    """What ``quantkv.load_model`` needs; ``attn`` is the attention implementation asked of transformers."""

    id: str = Field(min_length=1)
    dtype: Dtype = "float32"
    attn: Literal["quantkv", "sdpa", "eager", "flash_attention_2", "flex_attention"] = "quantkv"
    revision: str | None = None
    device: str | None = None
    device_map: str | dict[str, int | str] | None = None
    _location: str = PrivateAttr("")

    @model_validator(mode="before")
    @classmethod
    def _bare_id(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _locate(self, info: ValidationInfo) -> ModelEntry:
        self._location = self.id if is_built_in(self.id) else located(self.id, info.context)
        return self

    @property
    def location(self) -> str:
        """As ``load_model`` takes it."""
        return self._location


class Policy(Section):
    """Which tokens stay exact; a setting left out keeps each format's own."""

    sinks: OneOrMore[NonNegative | None] = (None,)
    recent: OneOrMore[NonNegative | None] = (None,)
    flush: OneOrMore[Positive | None] = (None,)


class TextSettings(Section):
    """``python-docs``, a file, or a data set on the hub."""

    source: str | None = None
    hf: str | None = None
    name: str | None = None
    split: str = "test"
    column: str = "text"
    _path: str | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        if not isinstance(value, str | dict):
            raise ValueError(f"{value!r} is no text; {TEXTS}")
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_origin(self) -> TextSettings:
        if bool(self.source) == bool(self.hf):
            raise ValueError(TEXTS)
        return self

    @model_validator(mode="after")
    def _locate(self, info: ValidationInfo) -> TextSettings:
        if self.source and self.source not in BUILT_IN:
            self._path = located(self.source, info.context)
        return self

    @property
    def argument(self) -> str | dict[str, Any]:
        """As ``quantkv.load_text`` takes it."""
        return self._path or self.source or self.model_dump(exclude={"source"}, exclude_none=True)

    @property
    def label(self) -> str:
        return self.source or "/".join(str(part) for part in (self.hf, self.name, self.split) if part)


class QualityProtocol(Section):
    """Settings of ``quantkv.measurements.quality.protocols.Protocol``; a preset may stand for the mapping.

    ``whole`` N scores whole windows of N tokens, every one of the text unless ``windows`` says how many.
    """

    preset: str | None = None
    prefill: OneOrMore[Prefill] = ("exact",)
    score: Positive = 128
    windows: Positive | None = 16
    bos: Literal["per_window", "text", "none"] = "per_window"
    whole: Positive | None = None
    sinks: NonNegative | None = None
    recent: NonNegative | None = None
    scale_bf16: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        value = {"preset": value} if isinstance(value, str) else value
        return filled(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check(self) -> QualityProtocol:
        for prefill in self.prefill:
            self.with_prefill(prefill)
        return self

    def with_prefill(self, prefill: str) -> Protocol:
        """The protocol of the cells with one of the prefills."""
        return Protocol(**self.model_dump() | {"prefill": prefill})


class QualitySettings(Section):
    text: TextSettings = TextSettings(source="python-docs")
    protocol: QualityProtocol = QualityProtocol()


class SpeedSettings(Section):
    """``formats`` limits the kind to some of the sweep's formats, as in ``MemorySettings``."""

    baseline: Literal["dynamic"] = "dynamic"
    rounds: Positive = 10
    block: Annotated[int, Field(strict=True, ge=2)] = 8
    fill: Literal["prefill", "synthetic"] = "prefill"
    threads: Positive | None = None
    formats: OneOrMore[str] | None = None


class MemorySettings(Section):
    """``workers`` cells run side by side, each in its own process with its share of the threads."""

    isolate: Literal["process"] = "process"
    phases: OneOrMore[Literal["prefill", "decode"]] = ("prefill", "decode")
    workers: Positive = 1
    formats: OneOrMore[str] | None = None


def _check_shard(value: str) -> str:
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", value)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"'{value}' is no share; legal: 1/4 for the first of four, up to 4/4")
    return value


def _check_task(value: str) -> str:
    if value not in task_names():
        raise ValueError(not_one_of(value, task_names()))
    return value


class RetrievalSettings(Section):
    """``samples`` questions per depth, task and context; no fact lies in the last ``tail`` tokens."""

    tasks: OneOrMore[Annotated[str, AfterValidator(_check_task)]] = tuple(task_names())
    samples: Positive = SAMPLES
    depths: OneOrMore[Annotated[float, Field(ge=0, le=1)]] = DEPTHS
    tail: NonNegative = TAIL
    text: TextSettings = TextSettings(source="python-docs")


class GenerationSettings(Section):
    """``tokens`` generated after each of ``prompts`` prompts; the last two settings are those of sampling."""

    tokens: Annotated[int, Field(strict=True, ge=2)] = 256
    prompts: Positive = PROMPTS
    mode: OneOrMore[Literal["greedy", "sample"]] = ("greedy",)
    text: TextSettings = TextSettings(source="python-docs")
    temperature: Annotated[float, Field(gt=0)] = 0.8
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95

    def protocol(self, mode: str) -> dict[str, Any]:
        """The settings that matter in a mode."""
        chance = {"temperature": self.temperature, "top_p": self.top_p} if mode == "sample" else {}
        return {
            "text": self.text.label,
            "mode": mode,
            "tokens": self.tokens,
            "prompts": self.prompts,
        } | chance


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
    parameters: dict[str, str | int | float | bool | dict[str, str | int]] = {}


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


class Sweep(Section):
    """One sweep; a kind of measurement left out is not made. ``import`` names Python files that register
    codecs or policies; it comes before the formats, which may name them."""

    version: Literal[1] = Field(alias="schema")
    imports: Annotated[tuple[ImportedFile, ...], BeforeValidator(imported_files)] = Field(
        default_factory=imported, alias="import"
    )
    models: OneOrMore[ModelEntry]
    formats: Annotated[tuple[FormatEntry, ...], BeforeValidator(_as_list), Field(min_length=1)]
    policy: Policy = Policy()
    contexts: OneOrMore[Positive]
    batch_sizes: OneOrMore[Positive] = (1,)
    seeds: OneOrMore[Seed] = (0,)
    quality: QualitySettings | None = None
    retrieval: RetrievalSettings | None = None
    generation: GenerationSettings | None = None
    speed: SpeedSettings | None = None
    memory: MemorySettings | None = None
    run: Run = Run()
    report: Report = Report()

    @model_validator(mode="after")
    def _something_to_measure(self) -> Sweep:
        if not self.kinds:
            raise ValueError(f"nothing to measure: give {', '.join(MEASURED)}, for example 'memory: {{}}'")
        names = [entry.label for entry in self.formats]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"formats: '{twice}' is given twice; give one of them another name")
        for kind, section in (("speed", self.speed), ("memory", self.memory)):
            unknown = next((name for name in (section and section.formats) or () if name not in names), None)
            if unknown is not None:
                raise ValueError(f"{kind}.formats: '{unknown}' is not among formats: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _check_contexts(self) -> Sweep:
        self.contexts_of_quality()
        if self.retrieval is not None:
            check_room(min(self.contexts), self.retrieval.tail)
        return self

    @model_validator(mode="after")
    def _check_packed(self) -> Sweep:
        """Retrieval and generation run a packed cache of ours; nothing may be left out of all of them."""
        kinds = [kind for kind in ("retrieval", "generation") if kind in self.kinds]
        if kinds and not any(isinstance(entry.with_policy(), CacheSpec) for entry in self.formats):
            raise ValueError(
                f"{kinds[0]} runs packed formats only: give one beside the others, such as int4-head"
            )
        return self

    def contexts_of_quality(self) -> list[int]:
        """All contexts, or only the length of windows scored whole; an error where that is not among them."""
        if self.quality is None:
            return []
        protocol = self.quality.protocol
        alone = self.kinds == ("quality",)
        return protocol.with_prefill(protocol.prefill[0]).contexts(self.contexts, alone=alone)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in MEASURED if getattr(self, kind) is not None)


def validate(
    raw: Mapping[str, Any],
    *,
    where: str = "sweep",
    overrides: Iterable[str] = (),
    folder: Path | None = None,
) -> Sweep:
    """``raw`` as a sweep, or one error with a line for every problem that says where it was written. Relative
    paths are looked for in ``folder`` first."""
    try:
        return Sweep.model_validate(dict(raw), context={FOLDER: folder} if folder else None)
    except ValidationError as error:
        problems = lines(error, Sweep)
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
