"""Options of a method: a frozen dataclass whose fields are words that a format says behind its `@`.

    sym: bool = False                                the word `sym`
    metadata: Literal["fp16", "bf16"] = "fp16"       the words `fp16` and `bf16`
    rank: int = 4                                    `rank8`, of 0 and more

Words print in the order of the fields, and not at all where a field is as it is by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from quantkv.errors import QuantKVError

METADATA = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
Metadata = Literal["fp16", "bf16", "fp32"]
"""The dtype in which scales and zeros are stored."""
RESERVED = re.compile(r"[cfgklpqrsvw]\d*")
"""What strings say for groups, fits, windows, layers, tensors, policies and constants."""


@dataclass(frozen=True)
class NoOptions:
    """Of methods that take none."""


@dataclass(frozen=True)
class Option:
    """One field: what it is by default, and its words, where it is no number."""

    field: str
    default: Any
    words: dict[str, Any]

    @property
    def is_number(self) -> bool:
        return not self.words

    @property
    def legal(self) -> tuple[str, ...]:
        """As messages name them."""
        return tuple(self.words) or (f"{self.field}N",)

    def read(self, word: str) -> Any:
        """What a word makes of the field; None where it is no word of it."""
        if self.is_number:
            match = re.fullmatch(rf"{self.field}(\d+)", word)
            return int(match[1]) if match else None
        return self.words.get(word)

    def word(self, value: Any) -> str:
        """How a value is said."""
        return f"{self.field}{value}" if self.is_number else {v: w for w, v in self.words.items()}[value]

    def holds(self, value: Any) -> bool:
        if self.is_number:
            return type(value) is int and value >= 0
        return type(value) is type(self.default) and value in (self.default, *self.words.values())

    def others(self) -> Iterator[Any]:
        """Values to try beside the default: every other word; of numbers, some near it."""
        found = self.words.values() if self.words else (2 * self.default, self.default // 2, self.default + 1)
        yield from (value for value in found if value != self.default)


def options_of(declared: type[Any]) -> tuple[Option, ...]:
    """The options that a dataclass declares. Raises QuantKVError where it is none, or where its fields cannot
    be said in a short string."""
    return _options_of(declared)  # type: ignore[arg-type]


@cache
def _options_of(declared: type[Any]) -> tuple[Option, ...]:
    parameters = getattr(declared, "__dataclass_params__", None)
    if not isinstance(declared, type) or not parameters or not parameters.frozen:
        raise QuantKVError(f"options must be a frozen dataclass, not {declared!r}")
    hints = get_type_hints(declared)
    found = tuple(_option(field.name, hints[field.name], field.default) for field in fields(declared))
    _check_words(found)
    return found


def _option(name: str, kind: Any, default: Any) -> Option:
    if kind is bool and default is False:
        return Option(name, default, {name: True})
    if kind is int and type(default) is int and default >= 0:
        return Option(name, default, {})
    if get_origin(kind) is Literal and default in get_args(kind):
        words = get_args(kind)
        if all(isinstance(word, str) for word in words):
            return Option(name, default, {word: word for word in words})
    raise QuantKVError(
        f"the option {name!r} must be a bool that is False by default, an int of 0 or more, or a Literal of "
        "words, with a default"
    )


def _check_words(options: tuple[Option, ...]) -> None:
    """That each word can be said, and can be told from all others."""
    said = [word for option in options for word in option.words or (option.field,)]
    for word in said:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", word) or RESERVED.fullmatch(word):
            raise QuantKVError(
                f"the option word {word!r} cannot be said: use a-z, 0-9 and -, and no single letter of "
                "c f g k l p q r s v w, with digits or without"
            )
    numbers = [option for option in options if option.is_number]
    if odd := [option.field for option in numbers if not option.field.isalpha()]:
        raise QuantKVError(f"the option {odd[0]!r} is followed by digits: give it letters alone")
    if same := {w for w in said if said.count(w) > 1 or any(n.read(w) is not None for n in numbers)}:
        raise QuantKVError(f"the option words {', '.join(sorted(same))} cannot be told apart")


def legal_words(declared: type[Any]) -> tuple[str, ...]:
    """What may be said, in the order in which it is printed."""
    return tuple(word for option in options_of(declared) for word in option.legal)


def read_option(declared: type[Any], word: str) -> tuple[str, Any] | None:
    """The field that a word sets and its value; None where it is no word of the dataclass."""
    for option in options_of(declared):
        if (value := option.read(word)) is not None:
            return option.field, value
    return None


def read_options(declared: type[Any], words: Sequence[str]) -> Any:
    """The instance that words say. Raises QuantKVError for a word that is none, and for two of one field."""
    said: dict[str, Any] = {}
    for word in words:
        if (found := read_option(declared, word)) is None:
            raise QuantKVError(f"{word!r} is none of {' '.join(legal_words(declared)) or 'no options'}")
        if found[0] in said:
            raise QuantKVError(f"{found[0]} is said twice, at last as {word!r}")
        said[found[0]] = found[1]
    return declared(**said)


def said_options(options: Any) -> list[str]:
    """The words of an instance, without those that hold by default."""
    both = ((option, getattr(options, option.field)) for option in options_of(type(options)))
    return [option.word(value) for option, value in both if value != option.default]


def check_options(owner: str, declared: type[Any], options: Any) -> None:
    """Raise where `options` are of another method, or hold what cannot be said."""
    if type(options) is not declared:
        legal = " ".join(legal_words(declared)) or "none"
        raise QuantKVError(f"{owner} takes options of {declared.__name__} ({legal}), not {options!r}")
    for option in options_of(declared):
        if not option.holds(value := getattr(options, option.field)):
            legal = "an integer of at least 0" if option.is_number else ", ".join(option.legal)
            raise QuantKVError(f"{option.field} of {owner} cannot be {value!r}; legal: {legal}")
