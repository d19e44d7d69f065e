"""What cells of speed and memory run on: tokens to feed, and the machine that decides their numbers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from quantkv.measurements.kind import Measurement
from quantkv.rows.cell import Cell
from quantkv.rows.provenance import machine
from quantkv.rows.settings import TextSettings

PYTHON_DOCS = TextSettings(source="python-docs")


class OfMachine(Measurement):
    """A kind whose numbers belong to the machine and its threads."""

    @property
    @abstractmethod
    def threads(self) -> int: ...

    def facts(self, cell: Cell) -> dict[str, Any]:
        found = {name: value for name, value in machine().items() if name != "ram_gb"}
        return {"threads": self.threads, "machine": found}

    def protocol(self, cell: Cell) -> dict[str, Any]:
        return {"threads": self.threads}

    def feed(self, length: int, seed: int) -> Tensor:
        """The start of the text that quality is measured on, `[length]`, repeated where it is short."""
        loaded = self.loaded
        if loaded.tokenizer is None:
            generator = torch.Generator().manual_seed(seed)
            vocabulary = loaded.config.get_text_config().vocab_size
            return torch.randint(vocabulary, (length,), generator=generator)
        ids = loaded.ids(getattr(loaded.sweep.section("quality"), "text", PYTHON_DOCS))
        return ids.repeat(-(-length // len(ids)))[:length]
