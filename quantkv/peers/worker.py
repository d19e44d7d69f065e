"""Decoding through a foreign cache: used by this package, and run as a script by another interpreter.

It needs torch, transformers (4.56 or later) and safetensors, and nothing of quantkv. As a script it reads one
JSON request per line and answers with one JSON line; tensors travel in safetensors files. It ends with its
standard input, and so with the process that started it.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

Run = tuple[Tensor, list[tuple[int, int]]]
HELD = ("keys", "values")
SKIPPED = (str, bytes, int, float, bool, type, torch.dtype, torch.device, torch.nn.Module)


def new_cache(recipe: dict[str, Any], config: Any) -> Any:
    """An empty cache as the recipe asks; presses prune one that drops nothing by itself."""
    if recipe["kind"] == "dynamic":
        return DynamicCache(config=config)
    if recipe["kind"] == "press":
        return DynamicCache()
    from transformers import QuantizedCache

    return QuantizedCache(recipe["backend"], config, **recipe["options"])


def pressed(recipe: dict[str, Any], model: Any) -> Any:
    """A context in which prefill drops what the recipe's press drops."""
    if recipe["kind"] != "press":
        return contextlib.nullcontext()
    import kvpress

    return getattr(kvpress, recipe["press"])(**recipe["options"])(model)


def forward(model: Any, ids: Tensor, cache: Any, start: int, *, keep: int = 1) -> Tensor:
    """Logits [keep, V] of the last tokens of `ids` [n], which stand at positions `start`, `start + 1`, ...

    Positions are given, not left to the cache's length: a pruned cache is shorter than what was read.
    """
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    inputs = {
        "input_ids": ids[None].to(model.device),
        "position_ids": torch.arange(start, start + len(ids), device=model.device)[None],
    }
    return model(**inputs, **{name: cache}, use_cache=True, logits_to_keep=keep).logits[0]


def prefill(model: Any, cache: Any, recipe: dict[str, Any], ids: Tensor, calls: Iterable[int]) -> Any:
    """The cache after the first `sum(calls)` tokens of `ids` [T], fed in calls of these sizes."""
    with pressed(recipe, model):
        run(model, cache, ids, calls, first=len(ids))
    return cache


def run(
    model: Any,
    cache: Any,
    ids: Tensor,
    calls: Iterable[int],
    *,
    start: int = 0,
    first: int,
    size_of: Callable[[Any], int] | None = None,
) -> Run:
    """Feed `ids` from `start` on in calls of these sizes: logits [n, V] of the tokens from position `first`
    on, and (tokens read, bytes held) after each call from which such a token may follow."""
    logits, held = [], []
    size_of = size_of or live_bytes
    with torch.inference_mode():
        for size in calls:
            wanted = min(size, start + size - first)
            out = forward(model, ids[start : start + size], cache, start, keep=max(1, wanted))
            start += size
            if wanted > 0:
                logits.append(out)
            if wanted >= 0:
                held.append((start, size_of(cache)))
    return (torch.cat(logits) if logits else torch.empty(0)), held


def steps(ids: Tensor, calls: Iterable[int]) -> list[int]:
    """Calls of one token for what follows a prompt read in `calls`; the last id is only a target."""
    return [1] * (len(ids) - 1 - sum(calls))


def live_bytes(cache: Any) -> int:
    """Bytes of every tensor that a cache keeps alive, found by walking its attributes; shared ones once."""
    sizes = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors_of(cache, set()))}
    return sum(sizes.values())


def kept_tokens(cache: Any) -> list[int]:
    """How many tokens each layer holds; none where it caches no keys, as linear layers do."""
    return [int(layer.get_seq_length()) if hasattr(layer, "get_seq_length") else 0 for layer in cache.layers]


def exact_bytes(cache: Any) -> int:
    """Bytes of keys and values that the layers hold as plain floats: not quantized at all, or not yet."""
    held = (getattr(layer, name, None) for layer in cache.layers for name in HELD)
    return sum(t.untyped_storage().nbytes() for t in held if isinstance(t, Tensor) and t.dim() == 4)


def tensors_of(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The plain tensors reachable from `value`; a wrapper (quanto's, say) counts as what it wraps."""
    if value is None or id(value) in seen or isinstance(value, SKIPPED):
        return
    seen.add(id(value))
    if isinstance(value, Tensor) and not hasattr(value, "__tensor_flatten__"):
        yield value
        return
    for inner in _parts(value):
        yield from tensors_of(inner, seen)


def _parts(value: Any) -> Iterable[Any]:
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is not None:
        return [getattr(value, name) for name in flatten()[0]]
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set)):
        return value
    return vars(value).values() if hasattr(value, "__dict__") else ()


def main(job: dict[str, Any]) -> None:
    """Load the job's model, say that it is there, then answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between the answers
    model = _load(job)
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        try:
            reply = answer(model, job["recipe"], json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        _answer(answers, reply)


def _load(job: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job["threads"])
    dtype = getattr(torch, job["dtype"])
    model = AutoModelForCausalLM.from_pretrained(
        job["model"], revision=job["revision"], dtype=dtype, attn_implementation=job["attn"]
    )
    return model.to(job["device"]).eval()


def _answer(stream: Any, reply: dict[str, Any]) -> None:
    stream.write(json.dumps(reply) + "\n")
    stream.flush()


def answer(model: Any, recipe: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks, write its tensors to `request["out"]`, and return its numbers.

    `plain`: logits from position `first` on, from one pass over all of `ids`, to compare models by.
    `prefill`: keys and values after the prompt's `calls`. `decode`: logits from `first` on through the peer's
    cache, and the bytes it held.
    """
    from safetensors.torch import load_file, save_file

    ids, calls, first = load_file(request["ids"])["ids"], request["calls"], request["first"]
    numbers: dict[str, Any] = {}
    if request["what"] == "plain":
        found = {"logits": run(model, DynamicCache(), ids, [len(ids) - 1], first=first)[0]}
    elif request["what"] == "prefill":
        cache = prefill(model, new_cache(recipe, model.config), recipe, ids, calls)
        numbers["kept"] = kept_tokens(cache)
        found = {f"{name}.{i}": getattr(x, name) for i, x in enumerate(cache.layers) for name in HELD}
    else:
        logits, numbers = decode(model, new_cache(recipe, model.config), recipe, ids, calls, first)
        found = {"logits": logits}
    save_file({name: tensor.contiguous().cpu() for name, tensor in found.items()}, request["out"])
    return numbers


def decode(
    model: Any, cache: Any, recipe: dict[str, Any], ids: Tensor, calls: list[int], first: int
) -> tuple[Tensor, dict[str, Any]]:
    """Read the prompt in `calls` and the rest token by token: logits from `first` on, and what was held.

    `exact`: bytes still held as floats, and `kept`: tokens held by each layer, both after the prompt.
    """
    with pressed(recipe, model):
        prompt, held = run(model, cache, ids, calls, first=first)
    numbers = {"exact": exact_bytes(cache), "kept": kept_tokens(cache)}
    rest, more = run(model, cache, ids, steps(ids, calls), start=sum(calls), first=first)
    logits = torch.cat([part for part in (prompt, rest) if len(part)])
    return logits, numbers | {"held": held + more}


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are no packages of the other interpreter
    main(json.loads(sys.argv[1]))
