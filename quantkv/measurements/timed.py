"""What cells of speed and memory run on: tokens to feed, and the machine that decides their numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantkv.measurements.kind import Loaded
from quantkv.rows.provenance import machine
from quantkv.rows.settings import TextSettings

PYTHON_DOCS = TextSettings(source="python-docs")


def tokens_to_feed(loaded: Loaded, length: int, seed: int) -> Tensor:
    """The start of the text that quality is measured on, repeated where it is short."""
    if loaded.tokenizer is None:
        generator = torch.Generator().manual_seed(seed)
        vocabulary = loaded.config.get_text_config().vocab_size
        return torch.randint(vocabulary, (length,), generator=generator)
    ids = loaded.ids(getattr(loaded.sweep.section("quality"), "text", PYTHON_DOCS))
    return ids.repeat(-(-length // len(ids)))[:length]


def machine_facts(threads: int) -> dict[str, Any]:
    """What of this machine decides times and bytes."""
    found = {name: value for name, value in machine().items() if name != "ram_gb"}
    return {"threads": threads, "machine": found}
