"""The quantized caches that transformers ships: `QuantizedCache` over quanto, HQQ, or plain 8-bit floats.

quanto and HQQ work in groups of 64 channels of one token and head. A prompt is quantized whole; afterwards up
to 127 tokens stay exact, and when there are 128 the whole cache is decoded and quantized once more. The 8-bit
float cache takes one scale per tensor from the first call and appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GROUP, RESIDUAL = 64, 128
PACKAGES = {"quanto": "optimum-quanto", "hqq": "hqq"}
# Axis 0 of quanto and axis 1 of HQQ both put 64 channels of one token and head into a group. HQQ's default
# axis 0 groups across tokens and heads and loses far more.
AXES = {"quanto": 0, "hqq": 1}


@dataclass(frozen=True, slots=True)
class Stock:
    """A backend of `transformers.QuantizedCache`; `bits` None where it takes no options (fp8)."""

    backend: str
    bits: int | None

    @property
    def recipe(self) -> dict[str, Any]:
        """What the worker makes the cache from."""
        options: dict[str, Any] = {}
        if self.bits is not None:
            axis = AXES[self.backend]
            options = {"nbits": self.bits, "axis_key": axis, "axis_value": axis}
            options |= {"q_group_size": GROUP, "residual_length": RESIDUAL}
        return {"kind": "stock", "backend": self.backend, "options": options}

    @property
    def package(self) -> str | None:
        """What must be installed beside transformers."""
        return PACKAGES.get(self.backend)

    @property
    def policy(self) -> dict[str, int]:
        """The part of a row's effective section that says which tokens stay exact."""
        flush = RESIDUAL if self.bits is not None else 1
        return (
            {"sinks": 0}
            | dict.fromkeys(("recent_key", "recent_value"), 0)
            | dict.fromkeys(("flush_key", "flush_value"), flush)
        )

    @property
    def notes(self) -> list[str]:
        return ["every flush packs the whole cache again"] if self.bits is not None else []


STOCK = {
    "quanto-int4": Stock("quanto", 4),
    "quanto-int2": Stock("quanto", 2),
    "hqq-int8": Stock("hqq", 8),
    "hqq-int4": Stock("hqq", 4),
    "hqq-int2": Stock("hqq", 2),
    "transformers-fp8": Stock("fp8", None),
}
