"""The lm-eval adapter beside the same scores computed row by row, token by token, through the real cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from quantkv import QuantizedCache, cache_argument
from quantkv.errors import QuantKVError
from quantkv.models import byte_tokenizer, random_model

pytest.importorskip("lm_eval", reason="lm-eval is not installed; pip install 'quantkv[lm-eval]'")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from quantkv.commands.lm_eval import arguments
from quantkv.harness.lm import QuantKVLM
from quantkv.harness.reads import generated_reads
from quantkv.harness.requests import ContextPrefill, split_in_waves

TEXT = (
    "A cache keeps what attention has to read again: a key and a value for each token, layer and head. "
    "Kept in sixteen bits it outgrows the model when texts are long; kept in two it fits, and errs. "
    "How much it errs is measured here, one token at a time, against sums that were worked out elsewhere. "
    "Every prompt is so long that most of what its answer reads was packed before the answer began. "
    "Short prompts would be read from the exact window, and all formats would look alike then. "
)
QUESTIONS = [
    {"text": TEXT[:420], "choices": [" yes", " no", " perhaps"], "answer": 0},
    {"text": TEXT[30:385], "choices": ["a", "b", "c"], "answer": 1},
    {"text": TEXT[5:460], "choices": ["left\n", "right"], "answer": 1},
    {"text": TEXT[60:430], "choices": ["x", "yy", "xz"], "answer": 2},
    {"text": TEXT[90:450], "choices": ["1", "22"], "answer": 0},
]
FORMATS = ["kivi-2", "k.int2-channel@g32+v.int4-head+r16+s4", "exact"]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model("random-llama", dtype=torch.float64)


@pytest.fixture
def tokenizer() -> Any:
    """Bytes; byte 0 ends a text."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<0x00>"
    return tokenizer


def adapter(model: Any, tokenizer: Any, format: str, **options: Any) -> QuantKVLM:
    return QuantKVLM(model, format, tokenizer=tokenizer, **options)


def asked(*pairs: tuple[str, str]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, 0, ("asked", i, 1)) for i, pair in enumerate(pairs)]


def decoded(model: Any, spec: str, tokens: list[int], calls: list[int]) -> torch.Tensor:
    """Log-probabilities `[T, vocabulary]` through a real cache: calls of these sizes, then one by one."""
    cache = QuantizedCache(model.config, spec)
    sizes = [*filter(None, calls), *[1] * (len(tokens) - sum(calls))]
    parts = [
        model(part[None], **{cache_argument(model): cache}).logits[0]
        for part in torch.tensor(tokens).split(sizes)
    ]
    return torch.cat(parts).log_softmax(-1)


def direct(model: Any, spec: str, context: str, answer: str, calls: list[int] | None = None) -> float:
    """The log-likelihood of an answer; by default all of the context but its last token comes in one call."""
    begin, end = list(context.encode()), list(answer.encode())
    logs = decoded(model, spec, (begin + end)[:-1], [len(begin) - 1] if calls is None else calls)
    return sum(float(logs[len(begin) - 1 + i, token]) for i, token in enumerate(end))


def written(model: Any, spec: str, prompt: str) -> str:
    """Greedy tokens: the prompt in one exact call, then one by one."""
    cache, tokens = QuantizedCache(model.config, spec), list(prompt.encode())
    fed, new = tokens, []
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([fed]), **{cache_argument(model): cache}).logits[0, -1]
        new.append(int(logits.argmax()))
        fed = new[-1:]
    return byte_tokenizer().decode(new).split("\n")[0].split("\x00")[0]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with three tasks on a local file."""
    (tmp_path / "docs.jsonl").write_text("\n".join(json.dumps(question) for question in QUESTIONS))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "docs.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{text}}",
    }
    choice = {
        "output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
        "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    rolling = {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    }  # fmt: skip
    generate = {
        "output_type": "generate_until", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": NEW_TOKENS},
        "metric_list": [{"metric": "exact_match"}],
    }  # fmt: skip
    for name, own in (("kv_choice", choice), ("kv_rolling", rolling), ("kv_generate", generate)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"task": name} | shared | own))
    return tmp_path


def evaluated(lm: Any, folder: Path, *names: str, limit: int | None = None) -> dict[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(lm, tasks=list(names), limit=limit, task_manager=manager, bootstrap_iters=0)


def responses(results: dict[str, Any], task: str) -> list[Any]:
    """What the model answered to each request of each question, in order."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [[one for (one,) in sample["resps"]] for sample in samples]


@pytest.mark.parametrize("spec", FORMATS)
def test_multiple_choice_is_scored_as_decoding_through_the_cache_scores_it(
    model: Any, tokenizer: Any, tasks: Path, spec: str
) -> None:
    results = evaluated(adapter(model, tokenizer, spec, batch_size=4), tasks, "kv_choice")
    hits = []
    for question, answers in zip(QUESTIONS, responses(results, "kv_choice"), strict=True):
        expected = [direct(model, spec, question["text"], choice) for choice in question["choices"]]
        assert [score for score, _ in answers] == pytest.approx(expected, abs=1e-6)
        hits.append(expected.index(max(expected)) == question["answer"])
    assert results["results"]["kv_choice"]["acc,none"] == pytest.approx(sum(hits) / len(hits))
    assert results["config"]["packed_read_fraction"]["kv_choice"] > 0.5


@pytest.mark.parametrize("spec", ["kivi-2", "exact"])
def test_rolling_likelihood_decodes_every_token(model: Any, tokenizer: Any, tasks: Path, spec: str) -> None:
    results = evaluated(adapter(model, tokenizer, spec, batch_size=2), tasks, "kv_rolling", limit=2)
    for question, (score,) in zip(QUESTIONS[:2], responses(results, "kv_rolling"), strict=True):
        assert score == pytest.approx(direct(model, spec, "\x00", question["text"]), abs=1e-6)
    assert results["config"]["packed_read_fraction"]["kv_rolling"] > 0.3


@pytest.mark.parametrize("batch_size", [1, 4])
def test_generation_runs_through_a_fresh_cache(
    model: Any, tokenizer: Any, tasks: Path, batch_size: int
) -> None:
    texts = {}
    for spec in ("kivi-2", "exact"):
        results = evaluated(
            adapter(model, tokenizer, spec, batch_size=batch_size), tasks, "kv_generate", limit=3
        )
        texts[spec] = [text for (text,) in responses(results, "kv_generate")]
        assert texts[spec] == [written(model, spec, question["text"]) for question in QUESTIONS[:3]]
        assert results["config"]["packed_read_fraction"]["kv_generate"] > 0.5
    assert texts["kivi-2"] != texts["exact"]


def test_formats_score_apart_and_exact_scores_as_lm_eval_alone(
    model: Any, tokenizer: Any, tasks: Path
) -> None:
    names = ("kv_choice", "kv_rolling", "kv_generate")
    stock = evaluated(HFLM(model, tokenizer=tokenizer, backend="causal"), tasks, *names, limit=2)
    exact = evaluated(adapter(model, tokenizer, "exact", batch_size=4), tasks, *names, limit=2)
    coarse = evaluated(adapter(model, tokenizer, "kivi-2", batch_size=4), tasks, *names, limit=2)
    for task, paired in (("kv_choice", True), ("kv_rolling", False)):
        flat = [
            [one[0] if paired else one for answers in responses(results, task) for one in answers]
            for results in (stock, exact, coarse)
        ]
        assert flat[1] == pytest.approx(flat[0], abs=1e-8)
        assert all(abs(a - b) > 1e-3 for a, b in zip(flat[2], flat[0], strict=True))
    assert responses(exact, "kv_generate") == responses(stock, "kv_generate")


def test_batches_of_any_size_give_equal_likelihoods(model: Any, tokenizer: Any) -> None:
    requests = asked(*[(q["text"], choice) for q in QUESTIONS for choice in q["choices"]])
    alone, together = (
        adapter(model, tokenizer, "kivi-2", batch_size=size).loglikelihood(requests, disable_tqdm=True)
        for size in (1, 4)
    )
    assert [a for a, _ in alone] == pytest.approx([b for b, _ in together], abs=1e-6)
    assert [a for _, a in alone] == [b for _, b in together]


@pytest.mark.parametrize(
    "prefill, calls",
    [("exact", [301]), ("stream", []), ("chunk:128", [128, 128, 45]), ("chunk:301", [301]), (200, [200])],
)
def test_contexts_come_in_as_the_prefill_says(
    model: Any, tokenizer: Any, prefill: str | int, calls: list[int]
) -> None:
    spec, longer = "k.int2-channel@g32+v.int4-head+r16+s4", TEXT[:341]
    lm = adapter(model, tokenizer, spec, prefill=prefill, batch_size=2)
    (score, _), _ = lm.loglikelihood(asked((TEXT[:301], "yes"), (longer, "no")), disable_tqdm=True)
    assert score == pytest.approx(direct(model, spec, TEXT[:301], "yes", calls), abs=1e-6)


def test_one_input_split_at_two_places_is_scored_twice(model: Any, tokenizer: Any) -> None:
    """lm-eval shares logits between requests of one input; here it matters where the answer begins."""
    spec, pairs = "kivi-2", [(TEXT[:400], "abc"), (TEXT[:400] + "ab", "c"), (TEXT[:400] + "ab", "d")]
    answers = adapter(model, tokenizer, spec, batch_size=4).loglikelihood(asked(*pairs), disable_tqdm=True)
    assert [score for score, _ in answers] == pytest.approx(
        [direct(model, spec, *pair) for pair in pairs], abs=1e-6
    )


def test_options_of_one_token_share_one_row(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = []
    call = HFLM._model_call
    monkeypatch.setattr(HFLM, "_model_call", lambda lm, rows: fed.append(len(rows)) or call(lm, rows))
    lm = adapter(model, tokenizer, "kivi-2", batch_size=4)
    lm.loglikelihood(asked(*[(TEXT[:301], choice) for choice in "abcd"]), disable_tqdm=True)
    assert fed == [1]


def test_texts_that_do_not_fit_lose_their_beginning(model: Any, tokenizer: Any) -> None:
    spec, keep = "kivi-2", 300
    lm = adapter(model, tokenizer, spec, max_length=keep)
    ((score, _),) = lm.loglikelihood(asked((TEXT[:400], "yes")), disable_tqdm=True)
    kept = (TEXT[:400] + "yes")[-(keep + 1) :]
    assert score == pytest.approx(direct(model, spec, kept[:-3], "yes"), abs=1e-6)


def test_largest_batches_are_found_as_lm_eval_finds_them(model: Any, tokenizer: Any) -> None:
    lm = adapter(model, tokenizer, "kivi-2", batch_size="auto", max_batch_size=2)
    ((score, _),) = lm.loglikelihood(asked((TEXT[:301], "yes")), disable_tqdm=True)
    assert score == pytest.approx(direct(model, "kivi-2", TEXT[:301], "yes"), abs=1e-6)
    alone = adapter(model, tokenizer, "kivi-2")
    alone.loglikelihood(asked((TEXT[:301], "yes")), disable_tqdm=True)
    assert lm.reads == alone.reads  # what was tried is not counted


@pytest.mark.parametrize(
    "length, prefill, level, words",
    [
        (40, "all_but_last", "ERROR", "is 0: no scored token read a packed key"),
        (301, "exact", "ERROR", "is 0: no scored token read a packed key"),
        (130, "all_but_last", "WARNING", "below 0.5"),
    ],
)
def test_scores_that_read_little_are_complained_about(
    model: Any,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    length: int,
    prefill: str,
    level: str,
    words: str,
) -> None:
    lm = adapter(model, tokenizer, "int4-head", prefill=prefill)
    lm.loglikelihood(asked((TEXT[:length], "y")), disable_tqdm=True)
    (record,) = [record for record in caplog.records if record.name.startswith("quantkv")]
    assert record.levelname == level and words in record.getMessage()


def test_packed_share_of_a_question_worked_out_by_hand(model: Any, tokenizer: Any) -> None:
    """Context 100, answer of 2 tokens, S 4, R 16, F 32: the queries at 99 and 100 read 100 and 101 keys, and
    4 + 32·⌊(99 − 20)/32⌋ = 4 + 64 and 4 + 32·⌊(100 − 20)/32⌋ = 4 + 64 is where packed ones end."""
    lm = adapter(model, tokenizer, "int4-head+r16+s4+f32")
    lm.loglikelihood(asked((TEXT[:100], "ab")), disable_tqdm=True)
    assert lm.get_model_info()["packed_read_fraction"] == {"asked": pytest.approx(128 / 201)}


def test_packed_share_of_generation_worked_out_by_hand(model: Any) -> None:
    """The second row has 50 pads. A prompt of 100 positions and 3 tokens: queries at 99 (in the exact call),
    100 and 101. Of the first row's keys 64 are packed at 100 and at 101; of the second row's, with 50 and 51
    real tokens before, 32·⌊(50 − 20)/32⌋ = 0."""
    cache = QuantizedCache(model.config, "int4-head+r16+s4+f32")
    pairs, packed = generated_reads(cache, torch.tensor([0, 50]), 100, torch.tensor([102, 102]))
    assert packed / pairs == pytest.approx(128 / (100 + 101 + 102 + 50 + 51 + 52))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=4),
            st.lists(st.integers(0, 2), min_size=1, max_size=3),
        ),
        max_size=12,
    ),
    st.integers(3, 8),
)
def test_every_padded_row_is_found_again(pairs: list[tuple[list[int], list[int]]], longest: int) -> None:
    waves = split_in_waves([(None, *pair) for pair in pairs], longest)
    assert sorted(index for wave in waves for index in wave.indices) == list(range(len(pairs)))
    for wave in waves:
        for index in wave.indices:
            context, answer = pairs[index]
            fed = (context + answer)[-longest - 1 : -1]
            (row,) = wave.find(torch.tensor([fed + [0] * (10 - len(fed))]))
            assert row.length == len(fed)
            assert fed[row.context :] == answer[:-1] and row.context == len(fed) - len(answer) + 1


def test_rows_of_no_request_are_refused() -> None:
    (wave,) = split_in_waves([(None, [1, 2], [3])], 8)
    with pytest.raises(QuantKVError, match="belong to no request"):
        wave.find(torch.tensor([[1, 3]]))


@pytest.mark.parametrize("wrong", ["all", "chunk:0", "chunk:x", "-3", "final"])
def test_wrong_prefills_name_the_legal_ones(wrong: str) -> None:
    with pytest.raises(QuantKVError, match="legal: all_but_last, exact, stream, chunk:N, or a number"):
        ContextPrefill.parse(wrong)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"format": None}, "format is missing; legal: .*kivi-2"),
        ({"format": "int4-hed"}, "legal: head, token"),
        ({"format": "kivi-2", "fromat": "x"}, "unknown model argument 'fromat'; legal: pretrained, format"),
        ({"format": "kivi-2", "dtype": "float31"}, "unknown dtype 'float31'; legal: float32"),
        ({"format": "kivi-2"}, "the tokenizer ends no text; give tokenizer="),
    ],
)
def test_wrong_model_arguments_name_the_legal_ones(options: dict[str, Any], words: str) -> None:
    with pytest.raises(QuantKVError, match=words):
        QuantKVLM("random-llama", **options)


@pytest.mark.parametrize(
    "given, expected",
    [
        (["--tasks", "a"], ["--tasks", "a", "--model", "quantkv"]),
        (["run", "--tasks", "a"], ["run", "--tasks", "a", "--model", "quantkv"]),
        (["--model", "hf", "--tasks", "a"], ["--model", "hf", "--tasks", "a"]),
        (["--model=hf"], ["--model=hf"]),
        (["--config", "run.yaml"], ["--config", "run.yaml"]),
        (["ls", "tasks"], ["ls", "tasks"]),
        (["run", "--help"], ["run", "--help"]),
        ([], []),
    ],
)
def test_the_command_line_is_handed_on(given: list[str], expected: list[str]) -> None:
    assert arguments(given) == expected


@pytest.mark.slow
def test_command_runs_tasks_and_writes_the_packed_share(model: Any, tokenizer: Any, tasks: Path) -> None:
    from quantkv.commands.cli import app

    model.save_pretrained(tasks / "model")
    tokenizer.save_pretrained(tasks / "model")
    run = ["lm-eval", "--include_path", str(tasks), "--output_path", str(tasks / "out"), "--batch_size", "4"]
    of = f"pretrained={tasks / 'model'},format=kivi-2,dtype=float64"
    result = CliRunner().invoke(app, [*run, "--tasks", "kv_choice", "--model_args", of])
    assert result.exit_code == 0, result.output
    (file,) = (tasks / "out").rglob("results_*.json")
    written_config = json.loads(file.read_text())["config"]
    assert written_config["model"] == "quantkv" and written_config["packed_read_fraction"]["kv_choice"] > 0.5
    wrong = CliRunner().invoke(app, [*run, "--tasks", "kv_choice", "--model_args", of + ",prefill=all"])
    assert wrong.exit_code == 2 and "prefill 'all'; legal: all_but_last" in wrong.output


def test_dropout_is_off_while_scoring_and_back_after(tokenizer: Any) -> None:
    model = random_model("random-gpt2", dtype=torch.float64, resid_pdrop=0.5, attn_pdrop=0.5)
    answers = []
    for training in (False, True):
        model.train(training)
        lm = adapter(model, tokenizer, "int4-head")
        answers.append(lm.loglikelihood(asked((TEXT[:200], " yes")), disable_tqdm=True))
        assert all(module.training == training for module in model.modules())
    assert answers[0] == answers[1]


def test_logits_that_are_not_finite_are_no_score(tokenizer: Any) -> None:
    model = random_model("random-llama", dtype=torch.float64)
    model.lm_head.weight.data[7] = float("nan")
    lm = adapter(model, tokenizer, "int4-head")
    with pytest.raises(QuantKVError, match="not finite"):
        lm.loglikelihood(asked((TEXT[:200], " yes")), disable_tqdm=True)
