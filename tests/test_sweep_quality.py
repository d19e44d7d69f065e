"""Quality protocols in a sweep file: presets, what they refuse, and the cells they make."""

from typing import Any

import pytest

from quantkv.errors import QuantKVError
from quantkv.sweep.config import validate
from quantkv.sweep.fitting import tokens_needed
from quantkv.sweep.grid import blocks, expand


def sweep(protocol: Any, **changes: Any) -> Any:
    raw = {"schema": 1, "models": "m", "formats": ["int4-head", "kivi-2"], "contexts": [2048]}
    return validate(raw | {"quality": {"protocol": protocol}} | changes, where="s.yaml")


def test_a_preset_stands_for_its_settings():
    for given in ("gptq-2048", {"preset": "gptq-2048"}):
        protocol = sweep(given).quality.protocol
        assert (protocol.whole, protocol.score, protocol.windows) == (2048, 2047, None)
        assert (protocol.prefill, protocol.bos) == (("stream",), "text")
    fake = sweep({"preset": "fake-quant", "windows": 32}).quality.protocol
    assert (fake.prefill, fake.sinks, fake.recent, fake.windows, fake.score) == (("final",), 0, 0, 32, 128)


def test_the_default_is_as_before():
    (cell, _) = expand(sweep({}))
    assert cell.protocol == {
        "text": "python-docs", "prefill": "exact", "score": 128, "windows": 16, "bos": "per_window"
    }  # fmt: skip


def test_whole_windows_make_one_cell_per_format_and_prefill_whatever_contexts_and_seeds():
    protocol = {"preset": "gptq-2048", "prefill": ["stream", "final"]}
    cells = expand(sweep(protocol, contexts=[512, 2048, 4096], seeds=[3, 4], memory={}))
    quality = [cell for cell in cells if cell.kind == "quality"]
    assert [(c.label, c.context, c.seed, c.prefill) for c in quality] == [
        (name, 2048, 3, prefill) for prefill in ("stream", "final") for name in ("int4-head", "kivi-2")
    ]
    assert all(cell.protocol["preset"] == "gptq-2048" and cell.protocol["whole"] == 2048 for cell in quality)
    assert len(blocks(quality)) == 2
    assert {cell.context for cell in cells if cell.kind == "memory"} == {512, 2048, 4096}


def test_a_protocol_is_part_of_the_key():
    settings = ({}, "fake-quant", {"prefill": "final"}, {"scale_bf16": True}, {"recent": 0})
    keys = {expand(sweep(protocol))[0].key({}) for protocol in settings}
    assert len(keys) == len(settings)


def test_a_window_scored_whole_needs_no_room_after_it():
    assert tokens_needed(sweep("gptq-2048")) == 2048
    assert tokens_needed(sweep({})) == 2048 + 128


@pytest.mark.parametrize(
    "protocol, changes, problem",
    [
        ("gptq", {}, "unknown protocol 'gptq'; legal: gptq-2048, fake-quant"),
        ("gptq-2048", {"contexts": [512, 2048]}, "give the context 2048, not 512, 2048"),
        ("gptq-2048", {"contexts": [512], "memory": {}}, "give the context 2048, not 512"),
        ({"preset": "gptq-2048", "prefill": ["final", "exact"]}, {}, "prefill exact reads no packed value"),
        ({"preset": "fake-quant", "sinks": 4}, {}, "fake-quant means sinks 0"),
        ({"windows": None}, {}, "only windows scored whole"),
        ({"whole": 512, "bos": "per_window"}, {}, "bos text or none"),
        ({"presett": "fake-quant"}, {}, "unknown setting; did you mean 'quality.protocol.preset'?"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(protocol, changes, problem):
    with pytest.raises(QuantKVError, match=problem):
        sweep(protocol, **changes)
