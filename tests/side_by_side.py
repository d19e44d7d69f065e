"""A `DynamicCache` and a lossless `QuantizedCache` that get the same random calls and must answer alike.

What may differ is listed here: `REFUSALS` are calls that a packed cache refuses by name, where transformers
goes on with a cache that no model can use; `ROLLS_BACK` are calls that it serves and transformers refuses.
"""

from __future__ import annotations

import copy
import pickle
import random
import re
from collections.abc import Callable
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.cache_utils import DynamicCache

from quantkv import QuantizedCache, QuantKVError
from quantkv.cache.layer import QuantizedLayer

WINDOW, KERNEL = 12, 4
_FOUR: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8,
}  # fmt: skip
_WINDOWS: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": WINDOW,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": _WINDOWS,
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"] * 2, "attention_chunk_size": WINDOW,
    },
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "gemma4_text": _WINDOWS | {
        "num_kv_shared_layers": 2, "per_layer_config": {layer: {"head_dim": 16} for layer in (1, 3)},
    },
    "deepseek_v3": {"num_key_value_heads": 4},
}  # fmt: skip
"""Full attention, windows alone and beside it, chunks, running states, convolutions (which can be taken
back), shared keys with layers of two widths, and values narrower than keys."""
UNEQUAL = {"deepseek_v3": (24, 16)}
SPECS = ("exact", "exact+r8+f4+s2+k8", "exact+r0+f16+s0+k0", "exact+r3+f8+s1+k2")
DTYPES = (torch.float32, torch.bfloat16, torch.float64)

REFUSALS = {
    "rows": "leaves no batch",
    "wrong": r"keys and values are \[rows|the cache holds",
    "crop": "can take back|cannot take back|cannot go back",
    "truncate": "can take back|cannot take back|cannot go back",
}
"""By call, what the refusal says: no rows at all, tensors that do not fit what is held, and tokens that a
window or a running state cannot bring back."""
REFUSED_BY_ALL = ("rows", "heads", "key width", "value width")
REFUSED_WHERE_PACKED = ("dtype", "tokens", "three")
"""Wrong tensors: of another dtype (transformers widens all that it holds), of values for fewer tokens than
keys, and of three dimensions."""
ROLLS_BACK = ("crop", "truncate")
"""A packed window goes back within its reserve without being told to record, and every layer by nothing."""


def config_of(family: str) -> Any:
    return AutoConfig.for_model(family, **_FOUR | CONFIGS[family])


class Pair:
    """Both caches after the same calls, and the whole history of every layer with keys and values."""

    def __init__(self, family: str, spec: str, rows: int, dtype: torch.dtype) -> None:
        self.family, self.config, self.rows, self.dtype = family, config_of(family), rows, dtype
        self.plain = DynamicCache(config=self.config)
        self.packed = QuantizedCache(self.config, spec)
        self.history: dict[int, tuple[Tensor, ...]] = {}

    @property
    def length(self) -> int:
        return self.plain.get_seq_length()

    @property
    def attending(self) -> list[int]:
        return [i for i, layer in enumerate(self.plain.layers) if hasattr(layer, "get_seq_length")]

    @property
    def running(self) -> list[int]:
        return [i for i, linear in enumerate(self.plain.is_linear) if linear]

    def copy(self) -> Pair:
        """The same state of both, by deepcopy of the plain one; the packed one is the caller's to copy."""
        other = copy.copy(self)
        other.plain, other.history = copy.deepcopy(self.plain), dict(self.history)
        return other

    def shape(self, layer: int, tokens: int) -> list[tuple[int, int, int, int]]:
        heads, width = 2, 16 if self.family == "gemma4_text" and layer == 1 else 8
        return [(self.rows, heads, tokens, w) for w in UNEQUAL.get(self.family, (width, width))]

    def tensors(self, layer: int, tokens: int) -> list[Tensor]:
        return [torch.randn(shape).to(self.dtype) for shape in self.shape(layer, tokens)]

    def call(self, name: str, act: Callable[[Any], Any]) -> bool:
        """Make a call on both; what it returns, raises and leaves must agree. Whether it was served."""
        before, kept = observed(self.packed), copy.deepcopy(self.plain)
        expected, found = outcome(act, self.plain), outcome(act, self.packed)
        if isinstance(expected, Exception):
            self.plain = kept  # transformers leaves some layers changed
        if isinstance(found, Exception):
            agree(before, observed(self.packed), "a refused call has changed")
            if not isinstance(expected, Exception):
                assert isinstance(found, QuantKVError) and re.search(REFUSALS[name], str(found)), repr(found)
                self.plain = kept
            elif type(found) is not type(expected):
                assert isinstance(found, QuantKVError), (expected, found)
            return False
        if isinstance(expected, Exception):
            assert name in ROLLS_BACK, repr(expected)
            if not any(layer.is_sliding for layer in self.packed.quantized_layers):
                agree(before, observed(self.packed), "taken back by nothing")
        else:
            agree(expected, found, "returned")
        return True

    def check(self) -> None:
        agree(observed(self.plain), observed(self.packed), "answers")
        agree(observed(self.plain), observed(self.packed.to_dynamic()), "contents of to_dynamic")

    # --- calls ---
    def forward(self, tokens: int) -> None:
        for layer in range(len(self.plain)):
            self.update(layer, tokens)

    def update(self, layer: int, tokens: int) -> None:
        if layer in self.attending:
            x = self.tensors(layer, tokens)
            assert self.call("update", methodcaller("update", *x, layer))
            old = self.history.get(layer)
            self.history[layer] = tuple(torch.cat(pair, 2) for pair in zip(old, x)) if old else tuple(x)
        elif layer in self.running:
            conv, state = torch.randn(self.rows, 6, tokens), torch.randn(self.rows, 2, 3, 3)
            self.call("state", methodcaller("update_conv_state", conv, layer, conv_kernel_size=KERNEL))
            if self.family != "lfm2_moe":
                self.call("state", methodcaller("update_recurrent_state", state, layer))

    def wrong(self, dice: random.Random) -> None:
        """A call whose tensors do not fit, in the middle of the layers."""
        wrong = dice.choice((*REFUSED_BY_ALL, *REFUSED_WHERE_PACKED))
        packed = [i for i in self.attending if isinstance(self.packed.layers[i], QuantizedLayer)]
        at = dice.choice(self.attending if wrong in REFUSED_BY_ALL else packed)
        for layer in range(len(self.plain)):
            if layer == at and self.tokens(layer):
                key, value = self.tensors(layer, 3)
                call = methodcaller("update", *_spoilt(wrong, key, value), layer)
                self.call("wrong", call)
            self.update(layer, 3)

    def crop(self, surplus: int) -> None:
        # beyond the first token transformers counts windows below zero
        surplus = min(surplus, self.length)
        if self.call("crop", methodcaller("crop", -surplus)):
            self._keep(self.tokens(self.attending[0]) - surplus)

    def truncate(self, length: int) -> None:
        surplus = self.length - length

        def act(cache: Any) -> None:
            if cache is self.packed:
                cache.truncate(length)
            elif surplus:
                cache.crop(-surplus)

        if self.call("truncate", act):
            self._keep(length)

    def tokens(self, layer: int) -> int:
        """Tokens that a layer has been given and has not given back."""
        return self.history[layer][0].shape[2] if layer in self.history else 0

    def _keep(self, length: int) -> None:
        """The history up to `length`, and the plain cache's layers where they have refused or forgotten."""
        self.history = {i: tuple(x[:, :, :length] for x in kv) for i, kv in self.history.items()}
        for i, (keys, values) in self.history.items():
            layer = self.plain.layers[i]
            window = layer.sliding_window - 1 if layer.is_sliding else length
            if layer.keys.shape[2] < min(length, window) or layer.get_seq_length() != length:
                start = max(0, length - window)
                layer.keys, layer.values = keys[:, :, start:], values[:, :, start:]
                if layer.is_sliding:
                    layer.cumulative_length = length

    def pick(self, method: str, argument: Any) -> None:
        """A call that reorders, drops or repeats rows."""
        if self.call("rows", methodcaller(method, argument)) and self.length:
            rows = torch.arange(self.rows)
            rows = rows.repeat_interleave(argument) if "repeat" in method else rows[argument]
            self.rows = len(rows)
            self.history = {i: tuple(x[rows] for x in kv) for i, kv in self.history.items()}

    def reset(self) -> None:
        self.call("reset", methodcaller("reset"))
        self.history = {}

    def record(self) -> None:
        self.call("record", methodcaller("activate_past_recording"))

    def initialize(self) -> None:
        shapes = [self.shape(layer, 0)[0] for layer in range(len(self.plain))]
        args = (self.rows, [s[1] for s in shapes], [s[3] for s in shapes], self.dtype, torch.device("cpu"))
        self.call("initialize", methodcaller("early_initialization", *args))


def _spoilt(wrong: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    if wrong == "three":
        return key[0], value[0]
    if wrong == "dtype":
        return key.to(torch.float16), value.to(torch.float16)
    if wrong == "tokens":
        return key, value[:, :, :2]
    if wrong == "value width":
        return key, value[..., :4]
    if wrong == "key width":
        return key[..., :4], value
    if wrong == "heads":
        return key[:, :1], value[:, :1]
    return key.repeat(2, 1, 1, 1), value.repeat(2, 1, 1, 1)


def outcome(act: Callable[[Any], Any], cache: Any) -> Any:
    try:
        found = act(cache)
    except Exception as error:
        return error
    return [plain(x) for x in found] if isinstance(found, tuple) else plain(found)


def plain(x: Any) -> Any:
    return x + 0 if isinstance(x, Tensor) else x


def observed(cache: Any) -> dict[str, Any]:
    """Everything that a cache answers, contents included; of a window what a later query may read."""
    answers: dict[str, Any] = {
        name: outcome(attrgetter(name), cache)
        for name in ("is_initialized", "is_sliding", "is_linear", "is_dummy", "is_compileable",
                     "is_croppable", "batch_size")
    }  # fmt: skip
    answers["length"] = cache.get_seq_length()
    answers["longest"] = cache.get_max_length()
    answers["iteration"] = outcome(_iterated, cache)
    for index, layer in enumerate(cache.layers):
        answers[f"{index}.recording"] = cache.is_recording_past(index)
        answers[f"{index}.offset"] = outcome(methodcaller("get_query_offset", index), cache)
        answers[f"{index}.longest"] = cache.get_max_length(index)
        for new in (1, 5):
            answers[f"{index}.mask {new}"] = outcome(methodcaller("get_mask_sizes", new, index), cache)
        for name in ("is_initialized", "is_croppable", "is_compileable", "cumulative_length"):
            answers[f"{index}.{name}"] = getattr(layer, name, None)
        for name in ("keys", "values"):
            answers[f"{index}.{name}"] = _visible(layer, getattr(layer, name, None))
        for name in ("conv_states", "recurrent_states", "has_previous_state"):
            states = getattr(layer, name, None)
            answers[f"{index}.{name}"] = None if states is None else {k: plain(x) for k, x in states.items()}
    return answers


def _iterated(cache: Any) -> list[Any]:
    return [
        (_visible(layer, keys), _visible(layer, values), window)
        for layer, (keys, values, window) in zip(cache.layers, cache, strict=True)
    ]


def _visible(layer: Any, x: Tensor | None) -> Tensor | None:
    """Without what transformers holds longer while it records the past; an empty layer is empty in whatever
    shape."""
    if x is None or not x.numel():
        return None if x is None else torch.empty(0)
    is_window = getattr(layer, "is_sliding", False) and layer.record_past
    return plain(x[:, :, -layer.sliding_window + 1 :] if is_window else x)


def agree(expected: Any, found: Any, what: str) -> None:
    """Equal in value, shape and dtype; errors in their type."""
    if isinstance(expected, dict):
        assert expected.keys() == found.keys(), what
        for name in expected:
            agree(expected[name], found[name], f"{what}: {name}")
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(found), what
        for i, (a, b) in enumerate(zip(expected, found, strict=True)):
            agree(a, b, f"{what}[{i}]")
    elif isinstance(expected, Tensor):
        assert isinstance(found, Tensor) and found.dtype == expected.dtype, what
        assert torch.equal(expected, found), what
    elif isinstance(expected, Exception):
        assert type(found) is type(expected), (what, expected, found)
    else:
        assert found == expected, (what, expected, found)


def run_sequence(family: str, seed: int, folder: Path, calls: int = 15) -> None:
    """Random calls on both caches; every copy made on the way is checked at the end."""
    dice = random.Random(f"{family} {seed}")
    torch.manual_seed(seed)
    spec = dice.choice(SPECS) + ("+sliding" if family == "mistral" or dice.random() < 0.6 else "")
    pair, others, log = Pair(family, spec, dice.randint(1, 3), dice.choice(DTYPES)), [], []
    try:
        for _ in range(calls):
            name = dice.choices(list(CALLS), weights=[weight for weight, _ in CALLS.values()])[0]
            log.append(name)
            CALLS[name][1](pair, dice, log)
            pair.check()
            if name in COPIES and (pair.length or name != "from_cache"):  # which cannot know widths then
                others.append(_copied(pair, name, folder))
                if dice.random() < 0.5:
                    pair, others[-1] = others[-1], pair
        for other in [pair, *others]:
            other.check()
            other.forward(3)
            other.check()
    except Exception as error:
        raise AssertionError(f"{family}, seed {seed}, {spec}, {pair.dtype}: {log}") from error


def _copied(pair: Pair, name: str, folder: Path) -> Pair:
    other = pair.copy()
    other.packed = COPIES[name](pair, folder / "cache")
    return other


def _from_file(pair: Pair, path: Path) -> QuantizedCache:
    pair.packed.save(path)
    return QuantizedCache.load(path, pair.config)


COPIES: dict[str, Callable[[Pair, Path], QuantizedCache]] = {
    "fork": lambda pair, path: pair.packed.fork(),
    "deepcopy": lambda pair, path: copy.deepcopy(pair.packed),
    "pickle": lambda pair, path: pickle.loads(pickle.dumps(pair.packed)),
    "save": _from_file,
    "from_cache": lambda pair, path: QuantizedCache.from_cache(pair.plain, pair.config, pair.packed.spec),
}
"""Ways to a cache that goes on by itself; the plain cache is copied by deepcopy."""


def _said(log: list[str], value: Any) -> Any:
    log[-1] += f"({value})"
    return value


def _pick(pair: Pair, dice: random.Random, log: list[str]) -> None:
    if pair.running and not pair.length:
        return  # rows of states would move and those of keys would not, in both
    rows, count = pair.rows, dice.randint(1, 3)
    some = [dice.randrange(rows) for _ in range(count)]
    ways: list[tuple[str, Any]] = [
        ("reorder_cache", torch.tensor(some)),
        ("reorder_cache", torch.tensor([*some, dice.choice((-1, rows))])),
        ("batch_repeat_interleave", dice.choice((2, 1, 1, 0, -1))),
        ("batch_select_indices", torch.tensor(some)),
        ("batch_select_indices", torch.tensor([-1, *some])),
        ("batch_select_indices", torch.tensor([*some, rows])),
        ("batch_select_indices", torch.tensor([dice.random() < 0.7 for _ in range(rows)])),
    ]
    if pair.running:
        ways = ways[:2]  # the others are not there for running states, whatever they are given
    method, argument = dice.choice([w for w in ways if rows < 4 or "repeat" not in w[0]])
    _said(log, (method, argument))
    pair.pick(method, argument)


def _inference(pair: Pair, dice: random.Random, log: list[str]) -> None:
    """As `generate` after a prefill under inference mode. States that are written in place cannot do it."""
    with torch.inference_mode(not pair.running):
        pair.forward(_said(log, dice.choice((1, 9))))


CALLS: dict[str, tuple[int, Callable[[Pair, random.Random, list[str]], Any]]] = {
    "forward": (7, lambda pair, dice, log: pair.forward(_said(log, dice.choice((1, 1, 2, 5, 9, 33, 300))))),
    "inference": (1, _inference),
    "wrong": (2, lambda pair, dice, log: pair.wrong(dice)),
    "crop": (2, lambda pair, dice, log: pair.crop(_said(log, dice.choice((0, 1, 2, 7, 15, 40, 150))))),
    "truncate": (1, lambda pair, dice, log: pair.truncate(_said(log, dice.randint(0, pair.length)))),
    "rows": (3, _pick),
    "reset": (1, lambda pair, dice, log: pair.reset()),
    "record": (1, lambda pair, dice, log: pair.record()),
    "initialize": (1, lambda pair, dice, log: pair.initialize()),
    **{name: (1, lambda pair, dice, log: None) for name in COPIES},
}
"""By name, how often a call is drawn and what it does."""
