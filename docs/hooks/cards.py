"""The pages under formats/: a card for every preset, a page for every codec, from specs and docstrings.

Nothing here states a property of a format: bits, fields, boundaries and bytes are asked of the code, formulas
and papers are the docstrings', measured figures are the rows in experiments/.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from quantkv import load_results, presets
from quantkv.cache.footprint import Footprint
from quantkv.cache.layer_shapes import LayerShape, TensorShape
from quantkv.codecs import codec_family, codec_names
from quantkv.codecs.registry import SHARING_MEANING, map_named, map_words
from quantkv.instruments.verdict import CAUTION_KL, UNFIT_KL
from quantkv.named import scheme_of
from quantkv.planner.card import in_words, shares
from quantkv.spec import CacheSpec, TensorSpec
from quantkv.wording.numbers import DASH, compact, compact_interval, percent

HEADS, WIDTHS, LENGTHS = 4, (64, 128), (128, 512, 2048, 8192)
ROWS = Path(__file__).parents[2] / "experiments" / "quality" / "rows"
FOLDER = "formats"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the made pages under the heading "Formats"."""
    section = next(entry["Formats"] for entry in config.nav if "Formats" in entry)
    section += [{"Presets": [{name: f"{FOLDER}/{name}.md"} for name in presets()]}]
    section += [{"Codecs": [{_title(m): f"{FOLDER}/codec-{_stem(m)}.md"} for m in codec_modules()]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, text in pages().items():
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=text))
    return files


def pages() -> dict[str, str]:
    """Markdown by page name."""
    cards = {name: card(name, spec) for name, spec in presets().items()}
    return {
        "index": overview(),
        **cards,
        **{f"codec-{_stem(m)}": codec_page(m, names) for m, names in codec_modules().items()},
    }


def overview() -> str:
    rows = [
        [
            f"[`{name}`]({name}.md)",
            *(f"{bits(spec, width):g}" for width in WIDTHS),
            *_largest_context(name),
            _word(spec.key),
            _word(spec.value),
        ]
        for name, spec in presets().items()
    ]
    longest = quality_rows()[-1]
    measured = [f"KL at {longest.context:g}", "top-1 %"]
    head = [
        "preset",
        *(f"bits, head_dim {width}" for width in WIDTHS),
        *measured,
        "keys share",
        "values share",
    ]
    return f"""# Formats

Every preset is a short string with a name; `quantkv formats` prints the same list. Bits are those of full
pages, scales and zeros included; what a whole cache holds, with its exact tokens, is on each card.

{_table(head, rows)}

KL and top-1 agreement: {_how_measured(longest)}

`quantkv check MODEL --format NAME` tries a format on your model. It says caution from a mean KL of
{CAUTION_KL:g} on, unfit from {UNFIT_KL:g} on.

What shares a scale, the number behind the word being G:

{_table(["word", "elements that share one scale"], [[f"`{w}`", m] for w, m in SHARING_MEANING.items()])}

[Maps](../maps.md) may stand before any codec but plain floats:

{_table(["map", "of", "what the codec is given"], _maps())}

`quantkv formats FORMAT` prints a card of any format: its bits, how a number is made, which words it may take.
"""


def _maps() -> list[list[str]]:
    named = {word: map_named(word) for word in map_words()}
    return [[f"`{w}`", ", ".join(f"{t}s" for t in m.tensors), in_words(m)] for w, m in named.items()]


def _largest_context(name: str) -> tuple[str, str]:
    """Measured KL and top-1 agreement."""
    found = [row for row in quality_rows() if row.format == name]
    return (compact(found[-1].kl_mean), percent(found[-1].top1_agreement)) if found else (DASH, DASH)


def card(name: str, spec: CacheSpec) -> str:
    scheme = scheme_of(name)
    parts = [f"# {name}", f"Short string: `{spec}`", _linked(scheme) if scheme else "", "## What is stored"]
    parts += [_stored(spec), *(_field_table(spec))]
    parts += ["## Bits", _bits_table(spec), "## Which tokens stay exact", _windows(spec)]
    measured = _measured(name)
    parts += ["## Measured", measured] if measured else []
    return "\n\n".join(part for part in parts if part) + "\n"


def codec_page(module: ModuleType, names: list[str]) -> str:
    users = [n for n, spec in presets().items() if {spec.key.codec, spec.value.codec} & set(names)]
    links = ", ".join(f"[`{n}`]({n}.md)" for n in users)
    return f"""# {_title(module)}

{_linked(cleandoc(module.__doc__ or ""))}

In short strings: {", ".join(f"`{n}`" for n in names)}. Presets: {links or "none"}.
"""


def bits(spec: CacheSpec, width: int) -> float:
    return spec.bits_packed(head_dim=width, num_key_value_heads=HEADS)


def _stored(spec: CacheSpec) -> str:
    lines = []
    for side, tensor in (("Keys", spec.key), ("Values", spec.value)):
        module = sys.modules[type(tensor.build()).__module__]
        more = f"[more](codec-{_stem(module)}.md)"
        lines.append(f"- **{side}**: `{tensor}`, {shares(tensor)}. {_formula(module)} {more}")
    return "\n".join(lines)


def _word(tensor: TensorSpec) -> str:
    group = f", {tensor.group}" if tensor.group else ""
    return f"`{tensor.sharing}`{group}" if tensor.sharing else "no scale"


def _field_table(spec: CacheSpec) -> tuple[str, str]:
    rows = []
    for half in spec.halves:
        for field in half.stored(HEADS, WIDTHS[0], torch.float32).fields:
            kind = f"{field.bits}-bit codes" if field.bits else str(field.dtype).removeprefix("torch.")
            per = "token" if field.tokens == 1 else f"{field.tokens} tokens"
            rows.append([half.name, f"`{field.name}`", kind, f"{field.heads} × {field.width}", per])
    head = ["", "field", "stored as", "heads × entries", "for each"]
    return f"The fields of a page, {HEADS} KV heads of {WIDTHS[0]} channels, a float32 model:", _table(
        head, rows
    )


def _bits_table(spec: CacheSpec) -> str:
    rows = [
        [str(width), f"{bits(spec, width):g}", *(f"{_cache_bits(spec, width, n):.2f}" for n in LENGTHS)]
        for width in WIDTHS
    ]
    head = ["head_dim", "full pages", *(f"cache at {n}" for n in LENGTHS)]
    text = (
        f"Bits per key or value, {HEADS} KV heads, a bfloat16 model. A cache holds more than its full pages: "
        "exact tokens, the roll-back reserve, room taken ahead in whole pages."
    )
    return f"{text}\n\n{_table(head, rows)}"


def _cache_bits(spec: CacheSpec, width: int, length: int) -> float:
    """The closed form that real caches are held equal to, for one layer and row."""
    tensor = TensorShape(HEADS, width, torch.bfloat16)
    layer = LayerShape("DynamicLayer", tensor, tensor)
    return 8 * Footprint.of([(layer, spec)]).nbytes(length) / (length * layer.token_elements)


def _windows(spec: CacheSpec) -> str:
    rule = "packed: tokens S ≤ j < b(n), with b(n) = S + F · ⌊max(0, n − S − R) / F⌋ and n tokens cached"
    rows = []
    for side, tensor, window in (
        ("keys", spec.key, spec.key_window),
        ("values", spec.value, spec.value_window),
    ):
        packed = (str(window.packed(n)) for n in LENGTHS)
        rows.append([side, str(spec.sinks), str(tensor.recent), str(tensor.flush), *packed])
    head = ["", "sinks S", "recent R", "flush F", *(f"packed of {n}" for n in LENGTHS)]
    return f"{rule} (see [Concepts](../concepts.md)).\n\n{_table(head, rows)}"


def _measured(name: str) -> str:
    found = [row for row in quality_rows() if row.format == name]
    if not found:
        return ""
    rows = [
        [
            f"{r.context:g}", f"{r.bits_cache:.2f}", f"{r.ppl_ratio:.4f}",
            compact_interval(r.kl_mean, r.kl_low, r.kl_high),
            percent(r.top1_agreement), percent(r.top5_agreement),
        ]
        for r in found
    ]  # fmt: skip
    head = ["context", "cache bits", "perplexity ratio", "KL [95 %]", "top-1 %", "top-5 %"]
    text = (
        f"{_how_measured(found[0])}\nBits are those of this {found[0].dtype} cache, exact tokens included. "
        "`quantkv sweep experiments/quality/sweep.yaml` measures all this again."
    )
    return f"{text}\n\n{_table(head, rows)}"


def _how_measured(row: Any) -> str:
    return (
        f"`{row.model}`, weights in {row.weights}, computed in {row.dtype}; text `{row.text}`; "
        f"{row.windows:g} windows of {row.score:g} scored tokens after each context. KL is in nats per token "
        "against the exact cache, intervals are over windows.\n"
        "One small model says little about others ([Limitations](../limitations.md))."
    )


@cache
def quality_rows() -> list[Any]:
    frame = load_results(ROWS)
    return list(frame[frame.kind == "quality"].sort_values("context").itertuples())


@cache
def codec_modules() -> dict[ModuleType, list[str]]:
    """The modules that hold codecs, each with the names it is known by in short strings."""
    found: dict[ModuleType, list[str]] = {}
    for name in codec_names():
        family = codec_family(name)
        sharing, maps = ("token-head" if family.sharings else None), (("norm",) if family.unit else ())
        codec = TensorSpec(codec=name, sharing=sharing, maps=maps).build()
        found.setdefault(sys.modules[type(codec).__module__], []).append(name)
    return found


def _formula(module: ModuleType) -> str:
    """The first sentence of the module's docstring."""
    return re.split(r"(?<=\.)\s", " ".join(cleandoc(module.__doc__ or "").split()), maxsplit=1)[0]


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").split(":")[0]


def _stem(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _linked(text: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
