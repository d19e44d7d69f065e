"""A method at one place: what the store and the decode-exact pass both call, so that they cannot differ.

A method is a codec behind a chain of maps. Here its fields, its steps and its row state come together, and
decoding is derived from what it declares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from quantkv.codecs.base import Codec
from quantkv.codecs.declared import check_declared, check_made
from quantkv.codecs.fields import Field, compute_dtype
from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place, Tokens
from quantkv.codecs.steps import Step, fold
from quantkv.codecs.terms import Fields, Term, decoded, formula


@dataclass(frozen=True, eq=False)
class Stored:
    """`maps` apply in order before `codec` and are undone in reverse. `fit_tokens`: how many tokens of a row
    its state is fitted on. Raises QuantKVError where the method cannot stand at the place."""

    codec: Codec
    place: Place
    maps: tuple[Map, ...] = ()
    fit_tokens: int = 0

    def __post_init__(self) -> None:
        check_declared(self.place, self.fields, self.terms, self.group_tokens)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """Of a page: the codec's, then those of the maps."""
        return (
            *self.codec.fields(self.place),
            *(f for map, _ in self._chain for f in map.fields(self.place)),
        )

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        return self.codec.terms(self.place)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are applied."""
        return tuple(step for _, step in self._chain)

    @cached_property
    def folds(self) -> bool:
        """Whether attention can take the steps into queries, outputs and scales."""
        return fold(self.steps)

    @property
    def positions(self) -> bool:
        """Whether it needs to know the positions of tokens."""
        return any(map.positions for map, _ in self._chain)

    @property
    def group_tokens(self) -> int:
        return self.codec.group_tokens

    @property
    def formula(self) -> str:
        return formula(self.terms)

    def fit(self, x: Tensor, first: Sequence[int]) -> dict[str, Tensor]:
        """The state of rows from the tokens `[N, H, fit_tokens, D]` that it is fitted on, in float32: in
        float64 on a copy of its own for each row, so that it does not depend on what else is in the batch."""
        rows = [self._fit_row(row, (at,)) for row, at in zip(x.split(1), first, strict=True)]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _fit_row(self, x: Tensor, first: tuple[int, ...]) -> dict[str, Tensor]:
        x = x.to(torch.float64).contiguous()
        state: dict[str, Tensor] = {}
        for map, step in self._chain:
            state |= {name: numbers.to(torch.float32) for name, numbers in map.fit(x).items()}
            tokens = Tokens(self.place, first, state)
            x = step.apply(x, tokens, map.measure(x, tokens))
        return state

    def encode(self, x: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        """`[N, H, T, D]`, whole groups, to the fields of so many tokens, codes unpacked."""
        y, fields = self.mapped(x, tokens)
        made = self.codec.encode(y, tokens)
        check_made(self.codec.fields(self.place), made, x.shape)
        return made | fields

    def mapped(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """What the codec is given for `x`, and the fields of the maps."""
        fields: dict[str, Tensor] = {}
        if self._chain:
            x = x.to(compute_dtype(x.dtype))
        for map, step in self._chain:
            fields |= map.measure(x, tokens)
            x = step.apply(x, tokens, fields)
        return x, fields

    def decode(self, fields: Fields, tokens: Tokens, dtype: torch.dtype) -> Tensor:
        """Fields back to `[N, H, T, D]`, computed and returned in `dtype` (float32 or float64)."""
        x = decoded(self.terms, fields, self.place.head_dim, dtype)
        for step in reversed(self.steps):
            x = step.undo(x, tokens, fields)
        return x

    @cached_property
    def _chain(self) -> tuple[tuple[Map, Step], ...]:
        """The maps that do something here."""
        pairs = ((map, map.step(self.place)) for map in self.maps)
        return tuple((map, step) for map, step in pairs if step is not None)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The state of one row, all of it float32."""
        place = self.place
        nothing = torch.zeros(1, place.num_heads, 2, place.head_dim, dtype=torch.float64)
        return {name: tuple(x.shape[1:]) for map, _ in self._chain for name, x in map.fit(nothing).items()}
