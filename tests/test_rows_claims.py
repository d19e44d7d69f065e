"""Claims: exclusive, given up at the end, taken over from the dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quantkv.rows import claims as module
from quantkv.rows.claims import Claims, is_stale, prepare_folder


def claim_file(claims: Claims, key: str = "k") -> Path:
    return claims.folder / f"{key}.json"


def write_claim(claims: Claims, **owner: object) -> Path:
    path = claim_file(claims)
    path.write_text(json.dumps(module._myself() | owner))
    return path


def test_a_claim_is_exclusive_until_given_up(tmp_path: Path) -> None:
    with Claims(tmp_path) as first, Claims(tmp_path) as second:
        assert first.take("k") and first.take("k")
        assert not second.take("k") and second.take("other")
        first.release("k")
        assert second.take("k")


def test_a_claim_says_which_cell_it_is(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        claims.take("k", "speed  int4-head, context 512")
        stale = write_claim(claims, started="other", cell="of the dead")
        claims._held.clear()
        assert claims.take("k", "speed  int4-head, context 512")
        assert json.loads(stale.read_text())["cell"] == "speed  int4-head, context 512"


def test_claims_of_the_dead_are_cleared_up_at_the_end_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    with Claims(tmp_path) as other:
        other.take("living")
        with Claims(tmp_path) as claims:
            write_claim(claims, started="of a process that is gone")
        assert [path.stem for path in claims.folder.iterdir()] == ["living"]
    assert not claims.folder.exists()


def test_all_claims_are_given_up_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Claims(tmp_path) as claims:
        claims.take("k")
        raise RuntimeError
    assert not claims.folder.exists()


def test_releasing_what_another_holds_does_nothing(tmp_path: Path) -> None:
    with Claims(tmp_path) as first, Claims(tmp_path) as second:
        first.take("k")
        second.release("k")
        assert claim_file(first).exists()


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with Claims(tmp_path) as claims:
        write_claim(claims, pid=child.pid)
        assert claims.take("k")
        assert json.loads(claim_file(claims).read_text())["pid"] == os.getpid()


def test_a_later_process_with_the_same_number_does_not_keep_a_claim(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        assert is_stale(write_claim(claims, started="another time"))
        assert not is_stale(write_claim(claims))


def test_a_silent_heartbeat_is_taken_over_even_from_another_host(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        path = write_claim(claims, host="elsewhere", pid=1)
        assert not claims.take("k")
        old = time.time() - module.STALE_SECONDS - 1
        os.utime(path, (old, old))
        assert claims.take("k")


def test_an_unreadable_claim_counts_by_its_age(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        path = claim_file(claims)
        path.write_text('{"pid"')
        assert not is_stale(path)
        os.utime(path, (0, 0))
        assert is_stale(path)


def test_held_claims_keep_beating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.02)
    with Claims(tmp_path) as claims:
        claims.take("k")
        os.utime(claim_file(claims), (0, 0))
        deadline = time.monotonic() + 20
        while claim_file(claims).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert claim_file(claims).stat().st_mtime > 0


def test_half_written_files_of_the_killed_are_swept_up(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".row-1.tmp", tmp_path / ".row-2.tmp"
    for path in (old, fresh):
        path.write_text("{")
    os.utime(old, (0, 0))
    prepare_folder(tmp_path)
    assert list(tmp_path.iterdir()) == [fresh]
