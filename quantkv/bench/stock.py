"""The quantized caches that transformers ships, as lanes of a race; each needs a package of its own."""

from __future__ import annotations

from quantkv.errors import UnsupportedError
from quantkv.measurements.speed.run import Lane
from quantkv.peers import parse_peer
from quantkv.peers.versions import check_installed

BITS = 4
NAMES = ("quanto-int4", "hqq-int4")


def stock_lanes() -> tuple[list[Lane], list[str]]:
    """A lane for each backend with 4 bits whose package is installed, and a line for each other."""
    lanes: list[Lane] = []
    missing = []
    for peer in map(parse_peer, NAMES):
        try:
            check_installed(peer)
        except UnsupportedError as error:
            missing.append(f"{peer.label} left out: {error}")
        else:
            lanes.append(Lane(peer.label, peer))
    return lanes, missing
