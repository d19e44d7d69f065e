"""What a shell offers after TAB. Spelled out here, since to ask the packages that know takes seconds of
imports at every key; a test holds both lists equal to what they know."""

from __future__ import annotations

FORMATS = (
    "fp32",
    "fp16",
    "bf16",
    "exact",
    "int8-head",
    "int4-head",
    "fp8-e4m3",
    "int8-channel",
    "int4-channel",
    "k8v4",
    "int8-g32",
    "int4-g32",
    "kivi-4",
    "kivi-2",
)
MODELS = (
    "smollm2-135m-instruct-q4_1",
    "gemma3-270m-q4_k_m",
    "random-llama",
    "random-qwen2",
    "random-qwen3",
    "random-mistral",
    "random-gemma3",
    "random-gpt2",
)


def complete_format(incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    return [name for name in MODELS if name.startswith(incomplete)]
