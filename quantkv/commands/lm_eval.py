"""`quantkv lm-eval`: lm-eval's own command line, with quantkv's caches as a model of its own."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import typer

from quantkv.errors import QuantKVError

OTHER_COMMANDS = ("ls", "validate")
SAYS_WHICH_MODEL = ("--model", "-M", "--config", "-C")
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Only a `--help` before anything else is ours; all that follows goes to lm-eval as it is."""


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval tasks through a quantized cache: its own options, and --model_args pretrained=…,format=…

    lm-eval's own help: quantkv lm-eval run --help
    """
    if find_spec("lm_eval") is None:
        raise QuantKVError("lm-eval is not installed; pip install 'quantkv[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate

    import quantkv.harness.lm  # noqa: F401  registers the model `quantkv`

    before, sys.argv = sys.argv, ["lm-eval", *arguments(context.args)]
    try:
        cli_evaluate()
    finally:
        sys.argv = before


def arguments(given: list[str]) -> list[str]:
    """lm-eval's arguments: unchanged, but for `--model quantkv` where a run names no model."""
    runs = bool(given) and given[0] not in OTHER_COMMANDS and not {"-h", "--help"} & set(given)
    named = any(word.split("=", 1)[0] in SAYS_WHICH_MODEL for word in given)
    return [*given, "--model", "quantkv"] if runs and not named else given
