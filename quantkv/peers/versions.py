"""Which versions of which packages an arm runs on, and whether it can run at all."""

from __future__ import annotations

import json
import platform
import subprocess
from functools import cache
from importlib import metadata
from typing import Any

from quantkv.errors import QuantKVError, UnsupportedError
from quantkv.peers.peer import Peer
from quantkv.version import installed

SECONDS = 60
_ASK = """
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


def versions(peer: Peer) -> dict[str, str | None]:
    """Package to version, `python` among them; None for what is not installed."""
    if peer.python is not None:
        return dict(_elsewhere(peer.python, peer.packages))
    return {"python": platform.python_version()} | {name: installed(name) for name in peer.packages}


def check_peer(peer: Peer, config: Any) -> None:
    """Raise UnsupportedError where a package is missing, or does not go with this model or transformers."""
    check_installed(peer)
    if peer.python is not None:
        return
    if peer.is_press:
        _check_requirement("kvpress", "transformers")
        return
    from quantkv.peers.worker import new_cache

    try:
        new_cache(peer.recipe, config)
    except (ValueError, ImportError) as error:
        raise UnsupportedError(f"{peer.label}: {error}") from error


def check_installed(peer: Peer) -> None:
    """Raise UnsupportedError where a package that the peer needs is not in its interpreter."""
    found = versions(peer)
    missing = next((name for name in peer.packages if found[name] is None), None)
    if missing is not None:
        place = f" for {peer.python}" if peer.python else ""
        raise UnsupportedError(f"{missing} is not installed{place}")


def _check_requirement(package: str, needed: str) -> None:
    """Raise where the installed version of `needed` is not one that `package` says it works with."""
    from packaging.requirements import Requirement

    asked = [Requirement(text) for text in metadata.requires(package) or []]
    wanted = next((each for each in asked if each.name == needed and each.marker is None), None)
    have = metadata.version(needed)
    if wanted is not None and not wanted.specifier.contains(have, prereleases=True):
        trouble = f"{package} {metadata.version(package)} needs {wanted}, here is {have}"
        raise UnsupportedError(f"{trouble}; name an interpreter that has both: {{peer: …, python: PATH}}")


@cache
def _elsewhere(python: str, packages: tuple[str, ...]) -> dict[str, str | None]:
    from quantkv.peers.remote import environment

    command = [python, "-c", _ASK, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment())
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise QuantKVError(f"python: {python} cannot be asked for its packages: {error}") from None
