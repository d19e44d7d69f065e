"""The tokens that a number was made from, as the hash that goes into its row's key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def digest(samples: Sequence[Tensor]) -> str:
    """SHA-256 over samples of one length."""
    return hashlib.sha256(torch.stack(list(samples)).numpy().tobytes()).hexdigest()
