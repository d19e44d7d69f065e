"""`quantkv check`: fit, caution or unfit, why, and what to try instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.commands.arguments import Dtype, Formats, Json, Model, Text, print_json
from quantkv.instruments.verdict import CAUTION_KL, UNFIT_KL, Thresholds
from quantkv.wording.streams import new_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quantkv.checking.run import Check


def check(
    model: Model,
    formats: Formats,
    fit: Annotated[float, typer.Option(help="mean KL (nats per token) below which it is fit")] = CAUTION_KL,
    caution: Annotated[float, typer.Option(help="mean KL from which it is unfit")] = UNFIT_KL,
    text: Text = "python-docs",
    context: Annotated[int, typer.Option(min=1, help="cached tokens when scoring starts")] = 1024,
    windows: Annotated[int, typer.Option(min=1, help="windows of 128 scored tokens")] = 8,
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Is a format fit for a model? Exits with 0 fit, 10 caution, 11 unfit, 3 not measured; the worst one."""
    from quantkv.spec.specs import parse_spec

    thresholds = Thresholds(fit, caution)
    specs = {name: parse_spec(name) for name in formats}
    console = new_console(stderr=True)
    with console.status("starting") as status:
        from quantkv.checking.run import check as measure
        from quantkv.models import load_model

        loaded, tokenizer = load_model(model, dtype=dtype)
        answer = measure(
            loaded,
            tokenizer,
            specs,
            text=text,
            context=context,
            windows=windows,
            thresholds=thresholds,
            progress=lambda what, done, total: status.update(f"{what}: window {done + 1} of {total}"),
        )
    facts = {"model": model, "text": text, "dtype": dtype}
    if as_json:
        print_json(facts | answer.to_dict())
    else:
        typer.echo("\n".join(_lines(answer, facts)))
    raise typer.Exit(answer.verdict.exit_code)


def _lines(answer: Check, facts: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{facts['model']} ({facts['dtype']}) at context {answer.context}: {answer.windows} windows of "
        f"{answer.score} scored tokens of {facts['text']}"
    )
    yield str(answer.thresholds)
    yield from answer.notes
    for result in answer.formats:
        yield ""
        yield f"{result.label}: {result.verdict.word}"
        yield from (f"  {found.words}" for found in result.findings)
        yield from (f"  why: {words}" for words in result.reasons)
        yield from (f"  {words}" for words in result.advice)
    yield ""
    yield f"verdict: {answer.verdict.word}"
