"""Other projects' caches as arms of the same measurements: same windows, same reference, same tables.

Nothing here is needed to use quantkv; each peer needs a package of its own, in this interpreter or another.
May be imported by arms, measurements and all that is above them.
"""

from quantkv.peers.peer import PREFIX, Peer, parse_peer

__all__ = ["PREFIX", "Peer", "parse_peer"]
