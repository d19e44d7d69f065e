"""Validation errors as single lines: the setting, what is wrong with it, and the nearest legal thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_PLAIN = {
    "int_type": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "missing": "is required",
    "too_short": "must not be empty",
}


def nearest(name: str, legal: Sequence[str]) -> str | None:
    """The legal name a user most likely meant."""
    found = difflib.get_close_matches(name.lower(), legal, n=1, cutoff=0.6)
    return found[0] if found else None


def lines(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line per problem, in the order of the file."""
    return [_line(problem, root) for problem in error.errors(include_url=False)]


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
    path = ".".join(str(part) for part in location)
    kind, given = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return f"{path}: unknown setting; {_suggest(location, root)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{path}: expected settings such as {_example(location, root)}, got {given!r}"
    if kind == "literal_error":
        legal = problem["ctx"]["expected"].replace(" or ", ", ")
        return f"{path}: {given!r} is not one of {legal}{_did_you_mean(given, legal)}"
    if kind == "value_error":
        return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
    text = _PLAIN.get(kind, problem["msg"].replace("Input should be", "must be"))
    return f"{path}: {text}" if kind in ("missing", "too_short") else f"{path}: {text}, got {given!r}"


def _did_you_mean(given: Any, legal: str) -> str:
    name = nearest(str(given), [item.strip(" '") for item in legal.split(",")])
    return f"; did you mean '{name}'?" if name else ""


def _suggest(location: Sequence[Any], root: type[BaseModel]) -> str:
    """The nearest key here, else the nearest anywhere with its full path, else all keys of this level."""
    model, key = _model_at(location[:-1], root), str(location[-1])
    here = [field.alias or name for name, field in model.model_fields.items()]
    parent = "".join(f"{part}." for part in location[:-1])
    if (name := nearest(key, here)) is not None:
        return f"did you mean '{parent}{name}'?"
    elsewhere = {path.rsplit(".", 1)[-1]: path for path in reversed(list(dotted_names(root)))}
    if (name := nearest(key, list(elsewhere))) is not None:
        return f"did you mean '{elsewhere[name]}'?"
    return f"legal here: {', '.join(here)}"


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
