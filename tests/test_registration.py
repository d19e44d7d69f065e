"""Codecs and policies from outside: by a call, and from the entry points of installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import Tensor

from quantkv import QuantKVError, parse_spec, policy
from quantkv.codecs import CodecFamily, registry
from quantkv.codecs.raw import Raw
from quantkv.policy import Length, Window, register_policy
from quantkv.testing import check_codec

FAMILY = CodecFamily("half", None, lambda options: Raw(torch.float16), scaled=False)


class Quarter(Window):
    """At most a quarter of the tokens is exact: short prompts are packed earlier."""

    def boundary(self, n: Length) -> Length:
        quarter = n // 4
        recent = quarter.clamp_max(self.recent) if isinstance(quarter, Tensor) else min(quarter, self.recent)
        past = n - self.sinks - recent
        past = past.clamp_min(0) if isinstance(past, Tensor) else max(0, past)
        return self.sinks + past // self.flush * self.flush


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    monkeypatch.setattr(policy, "_POLICIES", dict(policy._POLICIES))
    yield
    registry._load_installed.cache_clear()
    policy._load_installed.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, target: str) -> None:
    """Pretend that a package with one entry point is installed."""
    point = EntryPoint(name, f"{__name__}:{target}", "group")
    monkeypatch.setattr(module, "entry_points", lambda group: [point] if group == module.ENTRY_POINTS else [])
    module._load_installed.cache_clear()


def test_policy_registers_by_a_call_and_keeps_the_contract() -> None:
    register_policy("quarter", Quarter)
    spec = parse_spec("int4-head+r24+f8+s2+k8+p.quarter")
    assert str(spec) == "int4-head+r24+f8+s2+k8+p.quarter"
    assert spec.key_window.boundary(42) == 2 + 24  # 42 − 2 − 10 = 30: three chunks of 8
    assert parse_spec("int4-head+r24+f8+s2").key_window.boundary(42) == 2 + 16  # 42 − 2 − 24 = 16: two chunks
    check_codec(spec)


def test_policy_and_codec_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, policy, "quarter", "Quarter")
    installed(monkeypatch, registry, "half", "FAMILY")
    spec = parse_spec("half+p.quarter")
    assert isinstance(spec.key_window, Quarter)
    assert spec.bits_packed(head_dim=64, num_key_value_heads=2) == 16


def test_names_are_taken_once_and_unknown_ones_name_the_legal() -> None:
    with pytest.raises(QuantKVError, match="'window' is registered already"):
        register_policy("window", Quarter)
    with pytest.raises(QuantKVError, match="'int4' is registered already"):
        registry.register_codec(CodecFamily("int4", 4, FAMILY.build))
    with pytest.raises(QuantKVError, match="unknown policy 'quater'; legal policies: window"):
        parse_spec("int4-head+p.quater")


def test_published_presets_take_a_policy_only_when_it_is_said() -> None:
    register_policy("quarter", Quarter)
    assert isinstance(parse_spec("kivi-2+p.quarter").key_window, Quarter)
    assert parse_spec("kivi-2").policy == "window"
