"""Validation errors as single lines: the setting, what is wrong with it, and the nearest legal thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from quantkv.wording.suggestions import nearest, not_one_of

_PLAIN = {
    "int_type": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "missing": "is required",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


def lines(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line per problem: unknown settings first, since a misspelt one is the reason that another is
    missing, which then needs no line of its own."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    meant = {_meant(problem["loc"], root) for problem in unknown}
    others = [problem for problem in problems if problem["type"] != "extra_forbidden"]
    others = [p for p in others if p["type"] != "missing" or _dotted(p["loc"]) not in meant]
    return [_line(problem, root) for problem in (*unknown, *others)]


def _dotted(location: Sequence[Any]) -> str:
    return ".".join(str(part) for part in location)


def dotted_names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every legal setting of the schema, dotted."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield path
        inner = _inner(field.annotation)
        if inner is not None:
            yield from dotted_names(inner, path + ".")


def _line(problem: Any, root: type[BaseModel]) -> str:
    location = problem["loc"]
    path = _dotted(location)
    kind, given = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return f"{path}: unknown setting; {_suggest(location, root)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{path}: expected settings such as {_example(location, root)}, got {given!r}"
    if kind == "literal_error":
        legal = problem["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        return f"{path}: {not_one_of(given, legal.split(', '))}"
    if kind == "value_error":
        return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
    text = _PLAIN.get(kind, problem["msg"].replace("Input should be", "must be"))
    nothing_given = kind in ("missing", "too_short", "string_too_short")
    return f"{path}: {text}" if nothing_given else f"{path}: {text}, got {given!r}"


def _suggest(location: Sequence[Any], root: type[BaseModel]) -> str:
    if (name := _meant(location, root)) is not None:
        return f"did you mean '{name}'?"
    return f"legal here: {', '.join(_keys(_model_at(location[:-1], root)))}"


def _meant(location: Sequence[Any], root: type[BaseModel]) -> str | None:
    """The nearest key here, else the nearest anywhere, as a full path."""
    key = str(location[-1])
    if (name := nearest(key, _keys(_model_at(location[:-1], root)))) is not None:
        return _dotted([*location[:-1], name])
    elsewhere = {path.rsplit(".", 1)[-1]: path for path in reversed(list(dotted_names(root)))}
    return elsewhere.get(nearest(key, list(elsewhere)) or "")


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _example(location: Sequence[Any], root: type[BaseModel]) -> str:
    names = list(_model_at(location, root).model_fields)
    return "{" + ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") + "}"


def _model_at(location: Sequence[Any], root: type[BaseModel]) -> type[BaseModel]:
    model = root
    for part in location:
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        model = (_inner(field.annotation) if field else None) or model
    return model


def _inner(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _inner(part)) is not None), None)
