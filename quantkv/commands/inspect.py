"""`quantkv inspect`: what a model's keys and values are like, and where formats err."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkv.commands.arguments import Dtype, Json, Model, NoneOrMoreFormats, Text, print_json
from quantkv.errors import QuantKVError
from quantkv.wording.streams import new_console, print_line, print_wide

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from quantkv.spec.specs import CacheSpec


def inspect(
    model: Model,
    formats: NoneOrMoreFormats = None,
    out: Annotated[Path, typer.Option(help="where to write tables and figures")] = Path("inspection"),
    text: Text = "python-docs",
    context: Annotated[int, typer.Option(min=1, help="tokens prefilled")] = 1024,
    queries: Annotated[int, typer.Option(min=1, help="tokens that attend to them")] = 64,
    layers: Annotated[
        list[int] | None,
        typer.Option("--layer", help="a layer to draw; repeatable; default: the telling ones"),
    ] = None,
    windows: Annotated[
        int, typer.Option(min=0, help="windows of 128 tokens to measure KL on; 0 measures none")
    ] = 4,
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Look inside: errors per layer and head, channel statistics, magnitude plots, predicted damage."""
    from quantkv.spec.specs import parse_spec

    if out.exists() and not out.is_dir():
        raise QuantKVError(f"--out {out} is a file: name a folder")
    specs = {name: parse_spec(name) for name in formats or []}
    console = new_console(stderr=as_json)
    with console.status("starting"):
        from quantkv.data import load_text
        from quantkv.measurements.inside.inspection import inspect as look
        from quantkv.models import load_model, model_identity

        loaded, tokenizer = load_model(model, dtype=dtype)
        _check_layers(layers or [], loaded.config.get_text_config().num_hidden_layers)
    with console.status("looking inside"):
        seen = look(loaded, tokenizer, specs, text=text, context=context, queries=queries)
    with console.status("measuring KL"):
        kl = _measured(loaded, tokenizer, specs, text, context, windows)
    # What a caption must say of the model: the precision of its weights, and that of the computation.
    facts: dict[str, Any] = {"model": model, "weights": model_identity(loaded)["weights"]}
    facts |= {"dtype": str(loaded.dtype).removeprefix("torch."), "text": text, "windows": windows}
    facts["text_sha256"] = load_text(text).sha256
    _report(seen, kl, facts, out, layers, None if as_json else console)


def _check_layers(layers: list[int], count: int) -> None:
    wrong = [layer for layer in layers if not 0 <= layer < count]
    if wrong:
        raise QuantKVError(f"the model has no layer {wrong[0]}; legal: 0 to {count - 1}")


def _measured(
    model: Any, tok: Any, specs: Mapping[str, CacheSpec], text: str, context: int, windows: int
) -> dict[str, float]:
    """Mean KL by format, of those that could be measured."""
    from quantkv.sweep.evaluate import evaluate

    if not windows or not specs:
        return {}
    rows = evaluate(model, tok, specs, text=text, contexts=[context], windows=windows).rows
    return {row["requested"]["format"]: row["quality"]["kl_mean"] for row in rows if row["status"] == "ok"}


def _report(
    seen: Any,
    kl: dict[str, float],
    facts: dict[str, Any],
    out: Path,
    layers: list[int] | None,
    console: Console | None,
) -> None:
    """Write the files, and say what is in them: on the console, or as JSON without one."""
    from quantkv.measurements.inside.channels import shown_layers
    from quantkv.measurements.inside.files import write_inspection

    damage, correlation = _damage(seen, kl)
    facts |= {"context": seen.context, "queries": seen.queries, "rank_correlation": correlation}
    drawn = layers or shown_layers(seen.statistics)
    if console is not None:
        _print(seen, damage, correlation, console)
    paths = write_inspection(seen, damage, facts, out, drawn)
    if console is None:
        print_json(_told(seen, damage, facts, paths))
        return
    for path in paths:
        print_line(f"  {path}", console)


def _print(seen: Any, damage: pd.DataFrame, correlation: float | None, console: Console) -> None:
    from quantkv.measurements.inside.tables import error_table, outlier_table

    print_wide(outlier_table(seen.statistics), console)
    if len(damage):
        console.print()
        print_wide(error_table(seen.errors, damage), console)
        console.print()
        ranking = "no rank correlation: it needs three measured formats"
        if correlation is not None:
            over = f"rank correlation {correlation:.2f} over {len(damage.dropna())} formats"
            ranking = f"predicted damage and measured KL: {over}"
        console.print(ranking, highlight=False)


def _told(seen: Any, damage: pd.DataFrame, facts: dict[str, Any], paths: list[Path]) -> dict[str, Any]:
    """What the tables in the files hold, channel by channel excepted."""
    from quantkv.rows.row import strict_json

    frames = {"damage": damage.reset_index(), "errors": seen.errors, "statistics": seen.statistics}
    told = facts | {name: frame.to_dict("records") for name, frame in frames.items()}
    return strict_json(told | {"files": paths})


def _damage(seen: Any, kl: dict[str, float]) -> tuple[pd.DataFrame, float | None]:
    """Predicted beside measured damage, and their rank correlation."""
    import pandas as pd

    from quantkv.measurements.inside.prediction import damage_table, rank_correlation

    if not len(seen.errors):
        return pd.DataFrame(columns=["predicted", "kl_mean"]).rename_axis("format"), None
    table = damage_table(seen.errors, kl)
    return table, rank_correlation(table)
