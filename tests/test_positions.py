"""Positions of rows: found from position ids, seen to count on, refused where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.architectures import tiny_model
from support.modes import MODES
from torch import Tensor
from transformers import DynamicCache

from quantkv import UnsupportedError, cache_argument
from quantkv.cache.padding import counted_padding
from quantkv.cache.positions import row_offsets
from quantkv.cache.rotary import HALVES, INTERLEAVED
from quantkv.quiet import quiet

UNTOLD = {
    "falcon", "gpt_neox", "gpt_neox_japanese", "llama4_text", "ministral3", "moshi", "persimmon", "stablelm",
}  # fmt: skip
"""Families with RoPE whose attention does not hand its positions on to the cache."""


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def test_a_row_begins_where_its_first_real_token_does() -> None:
    told = ids([0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [1, 1, 7, 8, 9])
    assert row_offsets(told, [0, 2, 2], 0, 5, [0, 0, 0]) == [0, 0, 7]
    assert row_offsets(ids([5, 6, 7]), [0, 0], 0, 3, [0, 0]) == [5, 5]  # one row of ids for all


def test_padding_that_is_counted_is_an_offset() -> None:
    """A model that makes its own position ids counts padding too."""
    assert row_offsets(ids([0, 1, 2, 3, 4]), [0, 2], 0, 5, [0, 0]) == [0, 2]


def test_later_calls_count_on() -> None:
    assert row_offsets(ids([5, 6], [3, 4]), [0, 2], 5, 2, [0, 0]) == [0, 0]
    assert row_offsets(ids([12], [10]), [0, 2], 5, 1, [7, 7]) == [7, 7]


def test_rows_of_padding_alone_begin_later() -> None:
    assert row_offsets(ids([0, 1, 2], [1, 1, 1]), [0, 3], 0, 3, [0, 0]) == [0, 0]
    assert row_offsets(ids([3, 4], [9, 10]), [0, 3], 3, 2, [0, 0]) == [0, 9]
    assert row_offsets(ids([3, 4], [1, 4]), [0, 4], 3, 2, [0, 5]) == [0, 4]  # 5 was of another life


def test_without_position_ids_rows_begin_at_0_or_go_on() -> None:
    assert row_offsets(None, [0, 3], 0, 5, [0, 0]) == [0, 0]
    assert row_offsets(None, [0, 3], 5, 1, [4, 2]) == [4, 2]
    assert row_offsets(None, [0, 3], 3, 1, [4, 2]) == [4, 0]


@pytest.mark.parametrize(
    ("told", "pads", "start", "known", "said"),
    [
        ([[0, 1, 2, 0, 1, 2]], [0], 0, [0], r"row 0 is told 0, 1, 2 where 3, 4, 5 would follow"),
        ([[0, 1, 2], [0, 0, 0]], [0, 1], 0, [0, 0], "row 1 is told 0 where 1 would follow"),
        ([[5]], [0], 4, [0], "row 0 is told 5 where 4 would follow"),
        ([[4]], [1], 4, [0], "row 0 is told 4 where 3 would follow"),
        ([[4, 5, 5]], [0], 4, [0], "told 5 where 6"),
    ],
    ids=["packed", "standing still", "a jump", "another count", "a tree"],
)
def test_other_counts_are_refused(
    told: list[list[int]], pads: list[int], start: int, known: list[int], said: str
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        row_offsets(ids(*told), pads, start, len(told[0]), known)


@pytest.mark.parametrize("shape", [(3, 2, 5), (5,), (2, 7), (3, 5)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"\[1 or 2, 5\], and this call tells"):
        row_offsets(torch.zeros(shape, dtype=torch.long), [0, 0], 0, 5, [0, 0])


@settings(max_examples=100, deadline=None)
@given(
    pads=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    begins=st.integers(0, 1000),
    cuts=st.sets(st.integers(1, 19)),
)
def test_any_calls_find_the_same(pads: list[int], begins: int, cuts: set[int]) -> None:
    told = torch.arange(20) - torch.tensor(pads)[:, None] + begins
    told = torch.where(told >= begins, told, 1)
    known, start = [0] * len(pads), 0
    for end in [*sorted(cuts), 20]:
        known = row_offsets(told[:, start:end], pads, start, end - start, known)
        start = end
    assert known == [begins] * len(pads)


class Counting(DynamicCache):
    """A plain cache that counts its first layer's positions along."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.rows: Tensor = torch.zeros(2, 0, dtype=torch.long)  # pads, offsets
        self.calls = 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        if layer == 0:
            told = kwargs["kwargs"]["position_ids"]
            start, (rows, _, length, _) = self.layers[0].get_seq_length(), keys.shape
            if start == 0:
                self.rows = torch.tensor([counted_padding(told, rows, length), [0] * rows])
            pads, known = self.rows.tolist()
            self.rows = torch.tensor([pads, row_offsets(told, pads, start, length, known)])
            self.calls += 1
        return super().update(keys, values, layer, *args, **kwargs)

    def reorder_cache(self, beams: Tensor) -> None:
        super().reorder_cache(beams)
        self.rows = self.rows[:, beams]

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.rows = self.rows.repeat_interleave(repeats, 1)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.rows = self.rows[:, indices]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_generating_counts_on(mode: str) -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = None
    cache = Counting(config=model.config)
    with torch.no_grad(), quiet():
        MODES[mode](model, cache)
    assert cache.calls > 1 and not cache.rows[1].any()
    assert bool(cache.rows[0].any()) == mode.startswith("padded")


def told_and_turned(family: str) -> tuple[Tensor | None, Tensor]:
    """The position ids that a layer's cache is told, and those that its keys are turned by."""
    with quiet():
        model = tiny_model(family)
    told, turned = [], []

    class Spy(DynamicCache):
        def update(self, *args: Any, **kwargs: Any) -> Any:
            told.append((kwargs.get("kwargs") or {}).get("position_ids"))
            return super().update(*args, **kwargs)

    def hear(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        turned.append(named.get("position_ids", args[1] if len(args) > 1 else None))

    for module in model.modules():
        if "RotaryEmbedding" in type(module).__name__:
            module.register_forward_pre_hook(hear, with_kwargs=True)
    cache = Spy(config=model.config)
    with torch.no_grad(), quiet():
        arguments = {"use_cache": True, cache_argument(model): cache}
        model(input_ids=torch.full((1, 6), 7), position_ids=torch.arange(5, 11)[None], **arguments)
    return told[0], turned[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted((HALVES | INTERLEAVED) - {"granitemoehybrid"}))
def test_which_models_tell_their_positions(family: str) -> None:
    told, turned = told_and_turned(family)
    assert turned.flatten().tolist() == list(range(5, 11))
    assert (told is None) == (family in UNTOLD)
    assert told is None or torch.equal(told, turned)
