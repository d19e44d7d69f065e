"""`QuantKVLM`: lm-eval's Hugging Face model, scored and generating through a quantized cache.

Log-likelihoods come from the decode-exact pass, which equals decoding the answers token by token through the
cache; generation runs through a real `QuantizedCache`, fresh for each batch.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from quantkv.cache.padding import leading_zeros
from quantkv.cache.quantized import QuantizedCache
from quantkv.cache.using import use
from quantkv.decode_exact.simulate import simulate
from quantkv.errors import QuantKVError
from quantkv.harness.reads import Reads, generated_reads
from quantkv.harness.requests import ContextPrefill, Row, Wave, split_in_waves
from quantkv.instruments.divergence import finite
from quantkv.instruments.huggingface import evaluating
from quantkv.models.identity import model_identity
from quantkv.models.loading import load_model
from quantkv.spec.specs import CacheSpec, parse_spec, presets
from quantkv.version import __version__

LOADING = ("pretrained", "format", "prefill", "tokenizer", "dtype", "device", "device_map", "revision")
PASSED_ON = (
    "batch_size", "max_batch_size", "max_length", "truncation", "logits_cache", "softmax_dtype",
    "add_bos_token", "prefix_token_id", "think_end_token", "enable_thinking", "chat_template_args",
)  # fmt: skip
"""What HFLM takes of a model that is loaded already; it would swallow any other name in silence."""

log = logging.getLogger(__name__)


@register_model("quantkv")
class QuantKVLM(HFLM):
    """`QuantKVLM("smollm2-135m-instruct-q4_1", "int4-head")`, for `lm_eval.simple_evaluate(model=...)`.

    `pretrained` is whatever `quantkv.load_model` takes, or a model; `format` a preset, short string or
    `CacheSpec`; `prefill` says how contexts came into the cache (see `ContextPrefill`) and concerns
    log-likelihoods: generation prefills its prompt in one exact call. `device_map` overrules `device`.
    `options` go to HFLM. Raises QuantKVError for a wrong name or setting, before any task runs.
    """

    def __init__(
        self,
        pretrained: Any,
        format: str | CacheSpec | None = None,
        *,
        prefill: str | int = "all_but_last",
        tokenizer: Any = None,
        dtype: str | torch.dtype | None = "float32",
        device: str | None = None,
        device_map: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> None:
        _check_names(options)
        self.spec, self.prefill = _read_format(format), ContextPrefill.parse(prefill)
        if isinstance(pretrained, str):
            place = None if device_map else _device(device)
            pretrained, own = load_model(
                pretrained, dtype=dtype, device=place, device_map=device_map, revision=revision
            )
            tokenizer = _checked(tokenizer or own)
        QuantizedCache(pretrained.config, self.spec)  # fails here where the format does not fit the model
        self.reads: dict[str, Reads] = defaultdict(Reads)
        self.saturated = 0
        self._task = ""
        self._wave: Wave | None = None
        with evaluating(pretrained):  # HFLM would leave it in eval mode
            super().__init__(pretrained=pretrained, tokenizer=tokenizer, backend="causal", **options)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return self._task_by_task(super().loglikelihood, requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        return self._task_by_task(super().loglikelihood_rolling, requests, disable_tqdm)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        return self._task_by_task(super().generate_until, requests, disable_tqdm)

    def _task_by_task(self, answer: Callable[..., list], requests: list[Any], disable_tqdm: bool) -> list:
        """Answers in the order of the requests; the tasks run apart, so that reads are counted for each."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            places[request.task_name or "requests"].append(place)
        answers: list[Any] = [None] * len(requests)
        for task, own in places.items():
            self._task = task
            with evaluating(self.model):
                results = answer([requests[place] for place in own], disable_tqdm=disable_tqdm)
            for place, result in zip(own, results, strict=True):
                answers[place] = result
            reads = self.reads[task]
            if reads.complaint:
                log.log(logging.WARNING if reads.packed else logging.ERROR, "%s: %s", task, reads.complaint)
        return answers

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """The last place where each request's context is known: the model is called with padded rows only."""
        answers: list[Any] = [None] * len(requests)
        try:
            for wave in split_in_waves(requests, self.max_length):
                self._wave = wave
                own = [requests[place] for place in wave.indices]
                results = super()._loglikelihood_tokens(own, disable_tqdm, override_bs)
                for place, result in zip(wave.indices, results, strict=True):
                    answers[place] = result
        finally:
            self._wave = None
        return answers

    def _detect_batch_size(self, requests: Sequence | None = None, pos: int = 0) -> int:
        wave, self._wave = self._wave, None  # the rows it tries belong to no request
        try:
            return super()._detect_batch_size(requests, pos)
        finally:
            self._wave = wave

    def _model_call(self, inps: Tensor, attn_mask: None = None, labels: None = None) -> Tensor:
        """Logits `[B, T, vocabulary]` of rows padded on the right, as decoding each row's answer would give
        them."""
        batch, length = inps.shape
        rows = [Row(length, length)] * batch if self._wave is None else self._wave.find(inps)
        order, parts = [], []
        for picked, arguments in self.prefill.passes([row.context for row in rows]):
            parts.append(self._simulated(inps[picked], [rows[i] for i in picked], arguments))
            order += picked
        return parts[0] if len(parts) == 1 else torch.cat(parts)[torch.tensor(order).argsort()]

    def _simulated(self, inps: Tensor, rows: list[Row], arguments: dict[str, Any]) -> Tensor:
        lengths, scored = [row.length for row in rows], [row.context - 1 for row in rows]
        with simulate(self.model, self.spec, lengths=lengths, count_from=scored, **arguments) as simulation:
            logits = super()._model_call(inps)
        self._check_finite(logits, lengths)
        if self._wave is not None:
            self.reads[self._task].add(*simulation.reads)
            self.saturated += simulation.saturation.numbers
        return logits

    def _check_finite(self, logits: Tensor, lengths: list[int]) -> None:
        """Raise QuantKVError where a real token's logits are no distribution: its score would be a number all
        the same."""
        real = torch.arange(logits.shape[1]) < torch.tensor(lengths)[:, None]
        if not bool(finite(logits).cpu()[real].all()):
            raise QuantKVError(
                f"logits through {self.spec} are not finite: scores would say nothing; try format exact, and "
                "if that is no better the model in another dtype"
            )

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        """Token ids `[B, T + new]` of prompts `[B, T]` padded on the left."""
        with use(self.model, self.spec):
            out = super()._model_generate(context, max_length, stop, **options)
        prompt, mask = context.shape[1], options["attention_mask"]
        real = out[:, prompt:] != self.tokenizer.pad_token_id
        new = (real.flip(-1).cumsum(-1) > 0).sum(-1).cpu()
        ends = prompt - 1 + new  # the last token is predicted and never asks
        cache = QuantizedCache(self.model.config, self.spec)
        begins = torch.tensor(leading_zeros(mask))
        self.reads[self._task].add(*generated_reads(cache, begins, prompt, ends))
        return out

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes under `config` in its results."""
        identity = model_identity(self.model)
        shares = {task: reads.packed_fraction for task, reads in self.reads.items()}
        return super().get_model_info() | {
            "model_revision": identity["revision"],
            "model_weights": identity["weights"],
            "model_fingerprint": identity["fingerprint"],
            "kv_format": str(self.spec),
            "kv_prefill": self.prefill.name,
            "packed_read_fraction": shares,
            "saturated": self.saturated,
            "quantkv_version": __version__,
        }


def _check_names(options: dict[str, Any]) -> None:
    wrong = [name for name in options if name not in PASSED_ON]
    if wrong:
        raise QuantKVError(f"unknown model argument {wrong[0]!r}; legal: {', '.join((*LOADING, *PASSED_ON))}")


def _device(asked: str | None) -> str:
    """The GPU where there is one; lm-eval's command line asks for cuda:0 unless told otherwise."""
    if torch.cuda.is_available():
        return asked or "cuda"
    return "cpu" if asked is None or asked.startswith("cuda") else asked


def _read_format(given: str | CacheSpec | None) -> CacheSpec:
    if isinstance(given, CacheSpec):
        return given
    if not given:
        raise QuantKVError(f"format is missing; legal: {', '.join(presets())}, or a short string")
    return parse_spec(str(given))


def _checked(tokenizer: Any) -> Any:
    """A tokenizer that can do what lm-eval asks: end a text, or begin one where the context is empty."""
    if tokenizer is None or (not isinstance(tokenizer, str) and tokenizer.eos_token_id is None):
        what = "the model comes without a tokenizer" if tokenizer is None else "the tokenizer ends no text"
        raise QuantKVError(f"{what}; give tokenizer= one with an end-of-text token, as lm-eval needs")
    return tokenizer
