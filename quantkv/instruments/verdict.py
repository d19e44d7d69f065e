"""The words of a verdict, where they begin, and the exit codes they become. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from quantkv.errors import QuantKVError

CAUTION_KL = 0.02
UNFIT_KL = 0.1
MAX_DRIFT = 0.10
"""Times of a machine whose bandwidth changed by a larger share are flagged."""


class Verdict(IntEnum):
    """From best to worst; of several formats the worst decides."""

    FIT = 0
    CAUTION = 1
    UNFIT = 2
    UNCHECKED = 3

    @property
    def word(self) -> str:
        return "could not be checked" if self is Verdict.UNCHECKED else self.name.lower()

    @property
    def exit_code(self) -> int:
        """0, 10 and 11; 3 where nothing could be measured, as for failed cells of a sweep."""
        return {Verdict.FIT: 0, Verdict.CAUTION: 10, Verdict.UNFIT: 11, Verdict.UNCHECKED: 3}[self]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Mean KL in nats per token: below `fit` is fit, below `caution` calls for caution, the rest is unfit."""

    fit: float = CAUTION_KL
    caution: float = UNFIT_KL

    def __post_init__(self) -> None:
        if not 0 < self.fit <= self.caution < float("inf"):
            raise QuantKVError(
                f"thresholds: fit {self.fit:g}, caution {self.caution:g}; legal: 0 < fit <= caution, in nats"
            )

    def verdict(self, kl_mean: float) -> Verdict:
        """A KL that is not a number is unfit."""
        if kl_mean < self.fit:
            return Verdict.FIT
        return Verdict.CAUTION if kl_mean < self.caution else Verdict.UNFIT

    def __str__(self) -> str:
        return f"mean KL below {self.fit:g} nats per token is fit, below {self.caution:g} caution, else unfit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was noticed, and the best verdict it leaves."""

    verdict: Verdict
    words: str
