"""Constants: by name in formats, at their places, in keys and saved caches, shared by forks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantkv import QuantizedCache, QuantKVError, parse_spec
from quantkv.codecs.constants import CONSTANTS, Constants, register_constants
from quantkv.sweep.engines import rules


def rotation(heads: int, width: int, seed: int) -> Tensor:
    noise = torch.randn(
        heads, width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return torch.linalg.qr(noise)[0]


def rotations(config: object, seed: int = 0) -> Constants:
    heads, width = config.num_key_value_heads, config.head_dim  # type: ignore[attr-defined]
    layers = range(config.num_hidden_layers)  # type: ignore[attr-defined]
    of = {
        (i, which): rotation(heads, width, 7 * i + seed + (which == "key"))
        for i in layers
        for which in ("key", "value")
    }
    return Constants({i: {which: {"rot": of[i, which]} for which in ("key", "value")} for i in layers})


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONSTANTS, "known", dict(CONSTANTS.known))


SPEC = "int8-head@rot+r4+f4+s2+k4+c.turned"


def filled(config: object, length: int = 40) -> tuple[QuantizedCache, Tensor, Tensor]:
    cache = QuantizedCache(config, SPEC)  # type: ignore[arg-type]
    shape = (1, config.num_key_value_heads, length, config.head_dim)  # type: ignore[attr-defined]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    cache.update(x, x, 1)
    key, _ = cache.update(x[:, :, :1], x[:, :, :1], 1)
    return cache, x, key[:, :, :length]


def test_a_layer_takes_its_own_constants(tiny_llama: torch.nn.Module) -> None:
    """What is packed is `x R` in int8: as decoded, it differs from x by at most half a step, turned back."""
    config = tiny_llama.config
    constants = rotations(config)
    register_constants("turned", constants)
    cache, x, key = filled(config)
    turned = x.double() @ constants.at(1, "key")["rot"].double()
    steps = (turned.amax(-1, keepdim=True) - turned.amin(-1, keepdim=True)) / 255
    off = (key.double() @ constants.at(1, "key")["rot"].double() - turned).abs()[:, :, 2:32]
    assert (off <= 0.51 * steps[:, :, 2:32] + 1e-5).all() and off.max() > 1e-4
    assert (
        cache.constants_nbytes == constants.nbytes == 4 * 4 * config.num_key_value_heads * config.head_dim**2
    )
    assert cache.fork().constants_nbytes == cache.constants_nbytes


def test_the_string_says_them_and_unknown_ones_are_refused(tiny_llama: torch.nn.Module) -> None:
    register_constants("turned", rotations(tiny_llama.config))
    assert str(parse_spec(SPEC)).endswith("+c.turned")
    with pytest.raises(QuantKVError, match=r"unknown set of constants 'other'; legal: turned"):
        parse_spec("int4-head@rot+c.other")
    with pytest.raises(QuantKVError, match="rot"):
        QuantizedCache(tiny_llama.config, "int4-head@rot")
    with pytest.raises(QuantKVError, match="legal: a-z, 0-9 and hyphens"):
        register_constants("A.b", rotations(tiny_llama.config))
    with pytest.raises(QuantKVError, match="finite: rot of the keys of layer 0 is not"):
        Constants({0: {"key": {"rot": torch.tensor([float("nan")])}}})


def test_the_digest_is_part_of_a_rows_rules(tiny_llama: torch.nn.Module) -> None:
    first, second = rotations(tiny_llama.config), rotations(tiny_llama.config, seed=100)
    assert first.digest == rotations(tiny_llama.config).digest != second.digest
    register_constants("turned", first)
    assert rules(parse_spec(SPEC), "quality")["constants turned"].version == first.digest
    with pytest.raises(QuantKVError, match="registered already"):
        register_constants("turned", second)


def test_a_saved_cache_is_read_with_the_same_constants_only(
    tiny_llama: torch.nn.Module, tmp_path: Path
) -> None:
    register_constants("turned", rotations(tiny_llama.config))
    cache, _, key = filled(tiny_llama.config)
    cache.save(tmp_path / "cache.safetensors")
    again = QuantizedCache.load(tmp_path / "cache.safetensors", tiny_llama.config)
    assert torch.equal(again.layers[1].decoded()[0][:, :, :40], key)
    CONSTANTS.known.clear()
    register_constants("turned", rotations(tiny_llama.config, seed=100))
    with pytest.raises(QuantKVError, match="was packed with other constants"):
        QuantizedCache.load(tmp_path / "cache.safetensors", tiny_llama.config)
