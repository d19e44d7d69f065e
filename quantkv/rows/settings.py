"""Parts of a sweep file that kinds of measurement share: typed, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from quantkv import data
from quantkv.arms.formats import located
from quantkv.models.names import DTYPES, is_built_in

T = TypeVar("T")
TEXTS = "give python-docs, a path, or {hf: ID, name: CONFIG, split: test, column: text}"


def as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _unique(values: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(value for i, value in enumerate(values) if value not in values[:i])


def _whole_name(value: Any) -> Any:
    """``bf16`` as ``bfloat16``: what a row is asked for is written in one way."""
    found = DTYPES.get(value) if isinstance(value, str) else None
    return value if found is None else str(found).removeprefix("torch.")


Dtype = Annotated[Literal["float32", "bfloat16", "float16", "float64", "auto"], BeforeValidator(_whole_name)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
NonNegative = Annotated[int, Field(strict=True, ge=0)]
OneOrMore = Annotated[tuple[T, ...], BeforeValidator(as_list), Field(min_length=1), AfterValidator(_unique)]


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

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``load_model``."""
        return self.model_dump(exclude={"id"})


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
        if not isinstance(value, str | dict | TextSettings):
            raise ValueError(f"{value!r} is no text; {TEXTS}")
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_origin(self) -> TextSettings:
        if bool(self.source) == bool(self.hf):
            raise ValueError(TEXTS)
        return self

    @model_validator(mode="after")
    def _locate(self, info: ValidationInfo) -> TextSettings:
        if self.source and self.source not in data.BUILT_IN:
            self._path = located(self.source, info.context)
        return self

    @property
    def argument(self) -> str | dict[str, Any] | data.Text:
        """As ``quantkv.load_text`` takes it."""
        return self._path or self.source or self.model_dump(exclude={"source"}, exclude_none=True)

    @property
    def label(self) -> str:
        return self.source or "/".join(str(part) for part in (self.hf, self.name, self.split) if part)


class LoadedText(TextSettings):
    """A text that is there already, as a call gives it."""

    _loaded: data.Text = PrivateAttr()

    @classmethod
    def of(cls, loaded: data.Text) -> LoadedText:
        text = cls(source=loaded.name)
        text._loaded = loaded
        return text

    @property
    def argument(self) -> data.Text:
        return self._loaded
