"""What a cache says on the terminal about events that change its numbers: each kind once."""

from __future__ import annotations

import warnings

TEXTS = {
    "saturated": "keys or values lie beyond the range of what they are stored in, which holds its largest "
    "number instead and decodes to something else (`describe()` counts it as `saturated`). Scales and zeros "
    "in bfloat16, `@bf16`, reach as far as a bfloat16 model; so does the format `bf16`. What is not finite "
    "counts as well.",
    "deep_rollbacks": "tokens were taken back beyond the roll-back reserve: where exact ones are needed "
    "again, decoded ones stand in their place (`describe()` counts it as `deep_rollbacks`). `+k256` or "
    "`activate_past_recording()` hold more exact tokens.",
    "packed_at": "the exact history is packed now, as `+q` asks: from here on queries read decoded values "
    "(`describe()` tells at which length, as `packed_at`).",
}


class Notices:
    """What one cache, or one layer used alone, has said already; its forks know it too."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, event: str, format: str) -> None:
        """Warn of an event of a format, unless this was said before."""
        if event not in self._said:
            self._said.add(event)
            warnings.warn(f"{format}: {TEXTS[event]}", stacklevel=4)
