"""The process behind `memory_cell`: reads a job, measures one arm, writes the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from quantkv.arms.arm import BASELINE, Result, parse_format
from quantkv.cache.footprint import cache_footprint
from quantkv.cache.quantized import QuantizedCache
from quantkv.instruments import huggingface as hf
from quantkv.instruments import timing
from quantkv.instruments.processes import end_with_parent
from quantkv.instruments.windows import feed_tokens
from quantkv.measurements.memory.peaks import Counter, counter, release_memory
from quantkv.measurements.running import attention_of, effective, new_cache
from quantkv.peers.worker import live_bytes

SMALL_SHARE, SMALL_SAVING, MAX_MISMATCH = 0.05, 0.05, 0.05
WARM_UP_TOKENS, WARM_UP_PROMPT = 32, 28  # some caches pack tokens by fours only


def main(arguments: list[str]) -> int:
    job_file, result_file = map(Path, arguments)
    answer: dict[str, Any]
    try:
        answer = measure(json.loads(job_file.read_text()))
    except MemoryError:
        answer = {"error": "the memory worker ran out of memory"}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    result_file.write_text(json.dumps(answer, allow_nan=False))
    return 0


def measure(job: dict[str, Any]) -> dict[str, Result]:
    from quantkv.models import load_model

    model, _ = load_model(**job["model"])
    context, batch, steps = job["context"], job["batch"], job["steps"]
    hf.check_length(model, context + steps)
    feed = feed_tokens(_ids(job, model), batch, context + steps).to(model.device)
    spec = parse_format(job["spec"])
    attn = attention_of(model, spec)
    with timing.threads(job["threads"]), torch.inference_mode(), hf.attention(model, attn):
        _run(model, new_cache(model, spec), feed[:, :WARM_UP_TOKENS], min(context, WARM_UP_PROMPT))
        meter = counter(model.device)
        cache, section = _phases(model, spec, feed, context, job["phases"], meter)
        return {"memory": section, "effective": effective(model, spec, cache, attn=attn)}


def _ids(job: dict[str, Any], model: Any) -> Tensor:
    if job["ids"] is not None:
        return torch.tensor(job["ids"])
    count = job["batch"] * (job["context"] + job["steps"])
    vocab = model.config.get_text_config().vocab_size
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(0))


def _run(model: Any, cache: Any, feed: Tensor, prompt: int) -> None:
    """Prefill `prompt` tokens and decode the rest one by one."""
    hf.forward(model, feed[:, :prompt], cache)
    for position in range(prompt, feed.shape[1]):
        hf.forward(model, feed[:, position : position + 1], cache)


def _phases(
    model: Any, spec: Any, feed: Tensor, context: int, phases: list[str], meter: Counter
) -> tuple[Any, Result]:
    """The cache after both phases and the memory section. Held bytes are those at `context` tokens."""
    cache = new_cache(model, spec)
    section: Result = {}
    meter.start()
    hf.forward(model, feed[:, :context], cache)
    section |= _peak("prefill", meter, "prefill" in phases)
    release_memory()
    section |= _held(model, cache, context, len(feed))
    meter.start()
    for position in range(context, feed.shape[1] if "decode" in phases else context):
        hf.forward(model, feed[:, position : position + 1], cache)
    section |= _peak("decode", meter, "decode" in phases and feed.shape[1] > context)
    section |= {"counter": meter.name, "weights_bytes": weights_bytes(model)}
    return cache, section | {"flags": flags(section, spec)}


def _peak(phase: str, meter: Counter, wanted: bool) -> Result:
    peak, reserved = (meter.peak(), meter.reserved_peak()) if wanted else (None, None)
    return {f"{phase}_peak_bytes": peak, f"reserved_{phase}_peak_bytes": reserved}


def _held(model: Any, cache: Any, context: int, batch: int) -> Result:
    """Bytes right after a prompt that came in one call, beside the closed form and keys and values at 16 bits
    (states of linear layers as they are)."""
    layers = hf.cached_layers(model)
    predicted: int | None = cache_footprint(layers, cache).nbytes(context, batch, call=context)
    if isinstance(cache, QuantizedCache):
        held, used = cache.nbytes, cache.used_nbytes
    elif isinstance(cache, DynamicCache):
        held = used = hf.dynamic_bytes(cache)
    else:
        held = used = live_bytes(cache)
        predicted = None
    baseline = batch * sum(layer.states + 2 * context * layer.token_elements for layer in layers)
    return {
        "held_bytes": held,
        "used_bytes": used,
        "predicted_bytes": predicted,
        "baseline_16bit_bytes": baseline,
        "ratio_to_16bit": held / baseline,
    }


def weights_bytes(model: Any) -> int:
    """Bytes of parameters and buffers, tied ones counted once."""
    storages = [t.untyped_storage() for t in (*model.parameters(), *model.buffers())]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def flags(section: Result, spec: Any) -> list[str]:
    """What a reader must know before believing a memory saving."""
    held, predicted, baseline = (section[f"{name}_bytes"] for name in ("held", "predicted", "baseline_16bit"))
    found = []
    if predicted is not None and abs(held - predicted) > MAX_MISMATCH * predicted:
        found.append(f"holds {held} bytes, predicted {predicted}")
    if spec != BASELINE and section["ratio_to_16bit"] > 1 - SMALL_SAVING:
        found.append("holds hardly less than a 16-bit cache")
    share = baseline / (section["weights_bytes"] + baseline)
    if share < SMALL_SHARE:
        found.append(f"even a 16-bit cache is only {share:.1%} of cache and weights")
    return found


if __name__ == "__main__":
    end_with_parent(Path(sys.argv[1]).parent)
    sys.exit(main(sys.argv[1:]))
