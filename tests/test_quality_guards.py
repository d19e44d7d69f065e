"""No number of a cache that was not read: what equals the reference, what must not, and what raises."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from stores import round_trip

from quantkv import evaluate, load_model, parse_spec, perplexity
from quantkv.data import Text
from quantkv.decode_exact.simulation import Simulation
from quantkv.errors import QuantKVError
from quantkv.instruments.windows import make_windows
from quantkv.measurements.quality.run import quality_block
from quantkv.models import random_model
from quantkv.rows.files import read_rows
from quantkv.sweep.config import validate
from quantkv.sweep.run import run_sweep

IDS = torch.randint(0, 256, (1500,), generator=torch.Generator().manual_seed(5))
WORDS = "the quick brown fox jumps over the lazy dog. " * 60
WINDOW = "+r8+f16+s2+k8"
INT2 = f"int2-head{WINDOW}"
SMALL = {"context": 96, "score": 16, "windows": 2}
MODELS = ["random-llama", "random-qwen2", "random-mistral", "random-gemma3"]


def values(model, arms, protocol=None):
    plan = make_windows(IDS, span=96, score=16, windows=2)
    return quality_block(model, plan.at(96), arms, context=96, starts=plan.starts, protocol=protocol)


@pytest.mark.parametrize("prefill", ["exact", "final", "stream", "chunk:40"])
@pytest.mark.parametrize("name", MODELS)
def test_the_exact_cache_does_not_differ_from_itself(name, prefill):
    found = values(random_model(name), {"exact": "exact"}, {"prefill": prefill})["exact"]["quality"]
    assert 0 <= found["kl_mean"] <= found["kl_max"] <= 1e-7
    assert (found["top1_agreement"], found["top5_agreement"], found["delta_nll"]) == (1.0, 1.0, 0.0)
    assert 0 <= found["floor_path_kl"] <= 1e-7


def test_a_format_and_its_twin_do_not_differ():
    """Two spellings, and a plain function of the same numbers, which keeps 4 sinks and 64 recent tokens."""
    tensor = parse_spec("int4-head").key

    def function(x):
        return round_trip(tensor, x)

    arms = {"preset": "int4-head", "short": "k.int4-head+v.int4-head+s4+r64+f32", "function": function}
    preset, short, twin = (
        result["quality"] for result in values(random_model("random-llama"), arms).values()
    )
    assert preset["kl_mean"] > 0
    assert short == preset
    bits = [name for name in preset if name.startswith("bits_") or name == "cache_bytes"]
    assert twin == preset | dict.fromkeys(bits)


@pytest.mark.parametrize("protocol", [None, "fake-quant", {"whole": 112, "prefill": "stream"}])
def test_perplexity_tells_int2_from_exact(protocol):
    options = SMALL | {"context": 112, "score": None} if isinstance(protocol, dict) else SMALL
    model = random_model("random-llama")
    int2, exact = (perplexity(model, IDS, spec, **options, protocol=protocol) for spec in (INT2, "exact"))
    assert int2.kl_mean > 1e-6 and int2.nll != exact.nll and int2.nll_ref == exact.nll_ref
    assert int2.packed_read_fraction > 0.3


def test_evaluate_tells_int2_from_exact():
    text = Text("words", WORDS, "f" * 64, "made up")
    rows = evaluate(
        *load_model("random-llama"), [INT2, "exact"], text=text, contexts=[96], windows=2, score=16
    ).rows
    int2, exact = (row["quality"] for row in rows)
    assert int2["kl_mean"] > 1e-6 and int2["nll"] != exact["nll"] and exact["kl_mean"] == 0


@pytest.mark.long("starts a worker")
def test_a_sweep_tells_int2_from_exact(tmp_path: Path):
    (tmp_path / "words.txt").write_text(WORDS)
    sweep = {
        "schema": 1,
        "models": "random-llama",
        "formats": [INT2, "exact"],
        "contexts": 96,
        "quality": {"text": str(tmp_path / "words.txt"), "protocol": {"score": 16, "windows": 2}},
        "run": {"out": str(tmp_path / "out")},
    }
    assert run_sweep(validate(sweep), console=Console(file=io.StringIO())).exit_code == 0
    found = {row["requested"]["format"]: row["quality"] for row in read_rows(tmp_path / "out")}
    assert found[INT2]["kl_mean"] > 1e-6 and found[INT2]["nll"] != found["exact"]["nll"]
    assert found["exact"]["kl_mean"] == 0


@pytest.mark.parametrize("spec", [INT2, lambda x: x.round()], ids=["format", "function"])
def test_a_pass_that_does_not_go_through_the_format_raises(monkeypatch, spec):
    """As if attention were the model's own: a one-shot pass over the text, which reads no cache."""
    monkeypatch.setattr(Simulation, "attend", lambda *_, **__: None)
    with pytest.raises(QuantKVError, match="no scored token reads a packed value"):
        perplexity(random_model("random-llama"), IDS, spec, **SMALL)


def test_a_context_inside_the_exact_window_raises_through_every_entry_point(tmp_path: Path):
    wide = "int4-head+r200"
    message = "no scored token reads a packed value"
    with pytest.raises(QuantKVError, match=message):
        perplexity(random_model("random-llama"), IDS, wide, **SMALL)
    text = Text("words", WORDS, "f" * 64, "made up")
    with pytest.warns(UserWarning, match=message):
        loaded = load_model("random-llama")
        (row,) = evaluate(*loaded, [wide], text=text, contexts=[96], windows=1, score=16).rows
    assert (row["status"], row["quality"]) == ("failed", None)


def test_whole_windows_cannot_be_scored_with_an_exact_prompt():
    with pytest.raises(QuantKVError, match="reads no packed value in windows that are scored whole"):
        perplexity(
            random_model("random-llama"), IDS, INT2, context=64, protocol={"whole": 64, "prefill": "exact"}
        )
