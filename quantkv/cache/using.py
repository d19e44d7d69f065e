"""`use`: every `generate` of a model gets a fresh quantized cache and the fused attention, for a while."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

from transformers.cache_utils import Cache, EncoderDecoderCache

from quantkv.cache.hooks import fused_attention
from quantkv.cache.names import CACHE_ARGUMENTS, cache_argument
from quantkv.cache.quantized import QuantizedCache
from quantkv.errors import QuantKVError
from quantkv.spec.specs import CacheSpec, parse_spec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def use(model: PreTrainedModel, spec: str | CacheSpec) -> Iterator[PreTrainedModel]:
    """Inside, every `generate` (and every pipeline that calls it) gets a fresh `QuantizedCache` and the
    fused attention.

    A cache passed by hand is left alone. `use_cache: false` of a config or generation config is overruled;
    as an argument of `generate` it raises QuantKVError. A model that would go on with a plain cache from some
    length on (Phi-3 does, where its position embedding changes) fills the quantized one anew instead, and
    a warning says so. Everything is undone at the end.
    """
    spec = parse_spec(spec)
    QuantizedCache(model.config, spec)  # fails here, before anything is changed
    generate, keeping = model.generate, _keeping_cache(model.prepare_inputs_for_generation)

    @wraps(_function(generate))
    def with_cache(own: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        if all(kwargs.get(name) is None for name in CACHE_ARGUMENTS):
            _ask_for_cache(own, kwargs)
            kwargs[cache_argument(own)] = _fresh(own, spec)
        return _bound(generate, own)(*args, **kwargs)

    with (
        fused_attention(model),
        _replaced(model, "generate", with_cache),
        _replaced(model, "prepare_inputs_for_generation", keeping),
    ):
        yield model


def _fresh(model: PreTrainedModel, spec: CacheSpec) -> Cache:
    cache = QuantizedCache(model.config, spec)
    if not model.config.is_encoder_decoder:
        return cache
    return EncoderDecoderCache(cache, QuantizedCache(model.config, spec))


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(method, "__func__", method)


def _bound(method: Callable[..., Any], own: Any) -> Callable[..., Any]:
    """The method of the model that is called: a copy of the one it was taken from, perhaps."""
    return MethodType(method.__func__, own) if isinstance(method, MethodType) else method


@contextmanager
def _replaced(model: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A method instead of another, for a while; a copy of the model takes it along as its own."""
    before = vars(model).get(name)
    setattr(model, name, MethodType(function, model))
    try:
        yield
    finally:
        if before is None:
            delattr(model, name)
        else:  # inside another `use`
            setattr(model, name, before)


def _ask_for_cache(model: PreTrainedModel, kwargs: dict[str, Any]) -> None:
    """A cache that is passed along with `use_cache=False` would be given every token again at every step."""
    if kwargs.get("use_cache") is False:
        raise QuantKVError("use_cache=False inside quantkv.use(), which gives a cache: leave one out")
    given = getattr(kwargs.get("generation_config"), "use_cache", None)
    if (model.generation_config.use_cache if given is None else given) is False:
        kwargs["use_cache"] = True


def _keeping_cache(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """`prepare_inputs_for_generation` of models that leave the cache out where they want all tokens again."""

    @wraps(_function(prepare))  # generate reads its signature
    def prepared(own: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        cache = next((kwargs[n] for n in CACHE_ARGUMENTS if kwargs.get(n) is not None), None)
        inputs = _bound(prepare, own)(*args, **kwargs)
        if isinstance(cache, QuantizedCache) and all(inputs.get(n) is None for n in CACHE_ARGUMENTS):
            if length := cache.get_seq_length():
                warnings.warn(
                    f"{own.config.model_type} dropped its cache of {length} tokens for another position "
                    f"embedding: all tokens are computed again and packed anew",
                    stacklevel=2,
                )
            cache.reset()
            inputs[cache_argument(own)] = cache
        return inputs

    return prepared
