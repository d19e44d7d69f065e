"""The card of a format, from what its codecs and maps declare: what shares a scale, how a number is made, its
bits, which tokens stay exact, and which words it may take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

from rich.console import RenderableType

from quantkv.codecs import Codes, Place, Sharing, codec_family
from quantkv.codecs.maps.map import Map
from quantkv.codecs.options import legal_words
from quantkv.codecs.registry import SHARING_MEANING, SHARING_WORDS, map_named, map_words
from quantkv.codecs.terms import formula
from quantkv.errors import QuantKVError
from quantkv.spec.specs import CacheSpec, Half, parse_spec
from quantkv.spec.tensors import GROUPED, TensorSpec
from quantkv.wording.streams import bare_table

HEADS, WIDTHS = 4, (64, 128, 256)


def format_card(text: str) -> dict[str, Any]:
    """Everything by its name. Where a width is impossible, the reason stands for its bits."""
    spec = parse_spec(text)
    return {
        "name": spec.name,
        "spec": str(spec),
        "bits_packed": {str(width): _bits(spec, width) for width in WIDTHS},
        "sinks": spec.sinks,
        **{half.name: _tensor(half) for half in spec.halves},
    }


def _bits(spec: CacheSpec, width: int) -> float | str:
    try:
        return spec.bits_packed(head_dim=width, num_key_value_heads=HEADS)
    except QuantKVError as error:
        return str(error)


def _tensor(half: Half) -> dict[str, Any]:
    tensor, family = half.tensor, codec_family(half.tensor.codec)
    place = Place(half.which, HEADS, WIDTHS[0])
    return {
        "stored_as": str(tensor),
        "share_a_scale": shares(tensor, place),
        "formula": _formula(tensor, place),
        "fields": _fields(tensor, place),
        "maps": {word: in_words(map_named(word)) for word in tensor.maps},
        "fit_tokens": tensor.fit_tokens,
        "recent": tensor.recent,
        "flush": tensor.flush,
        "packed_from": half.window.after + 1 if half.window.after else 0,
        "legal_sharings": [word for word, full in SHARING_WORDS.items() if full in family.sharings],
        "legal_options": [*(["gN"] if tensor.sharing in GROUPED else []), *legal_words(family.options)],
        "legal_maps": legal_maps(half),
    }


def shares(tensor: TensorSpec, place: Place) -> str:
    """Which elements share one scale, as the codec declares it."""
    codes = [term for term in tensor.build().terms(place) if isinstance(term, Codes)]
    declared = {scale.sharing for term in codes for scale in (*term.scales, *filter(None, [term.zero]))}
    if not declared:
        return "no scale"
    if tensor.sharing is None or declared != {tensor.shared}:
        return "; ".join(sorted(map(_block, declared)))
    meaning = SHARING_MEANING[tensor.sharing].replace(" G ", f" {tensor.group} ")
    chunk = f" ({tensor.flush} tokens)" if tensor.sharing.startswith("chunk") else ""
    return f"{tensor.sharing}: {meaning}{chunk}"


def _block(sharing: Sharing) -> str:
    """`16 channels of 1 token of one head`."""
    channels = "all channels" if sharing.channels is None else f"{sharing.channels} channels"
    heads = "all heads" if sharing.all_heads else "one head"
    return f"{channels} of {sharing.tokens} token{'s' * (sharing.tokens > 1)} of {heads}"


def _fields(tensor: TensorSpec, place: Place) -> dict[str, str]:
    """What each field of a page has: bits of a code, or a dtype; nothing where the width is impossible."""
    try:
        declared = tensor.build().fields(place)
    except QuantKVError:
        return {}
    own = [field for word in tensor.maps for field in map_named(word)().fields(place)]
    kinds = [(f.name, f.dtype if f.bits is None else f"{f.bits} bits") for f in declared]
    kinds += [(field.name, field.dtype) for field in own]
    return {name: str(kind).removeprefix("torch.") for name, kind in kinds}


def _formula(tensor: TensorSpec, place: Place) -> str:
    """`x̂ = had⁻¹(scale · code + zero)`."""
    made = formula(tensor.build().terms(place))
    for word in reversed(tensor.maps):
        made = f"{word}⁻¹({made})"
    return f"x̂ = {made}"


def card_parts(text: str) -> Iterator[RenderableType]:
    """A line on the whole, and a table for keys and values, or for both at once where they are alike."""
    card = format_card(text)
    yield f"{card['name']}: {_bits_line(card['bits_packed'])}"
    both = {name: _lines(card[name], card["sinks"]) for name in ("keys", "values")}
    alike = both["keys"] == both["values"]
    for name, lines in {"keys and values": both["keys"]}.items() if alike else both.items():
        columns = [name, lines.pop("stored as")]
        table = bare_table(columns, left=columns)
        for title, words in lines.items():
            table.add_row(title, words)
        yield table


def _bits_line(bits: dict[str, float | str]) -> str:
    """Numbers, and why there is none, once where that is so at every width."""
    if all(isinstance(number, str) for number in bits.values()):
        return str(next(iter(bits.values())))
    said = (
        f"{n:g} at head_dim {w}" if isinstance(n, float) else f"none at {w}: {n}" for w, n in bits.items()
    )
    return f"bits on full pages {', '.join(said)}"


def _lines(tensor: dict[str, Any], sinks: int) -> dict[str, str]:
    exact = [f"the {which} {n}" for which, n in (("first", sinks), ("last", tensor["recent"])) if n]
    lines = {
        "stored as": tensor["stored_as"],
        "one scale for": tensor["share_a_scale"],
        "a number": tensor["formula"],
        "stored": ", ".join(f"{name} {kind}" for name, kind in tensor["fields"].items()) or "-",
        **tensor["maps"],
        "exact tokens": " and ".join(exact) or "none",
        "packed": "token by token" if tensor["flush"] == 1 else f"{tensor['flush']} tokens at a time",
    }
    if tensor["packed_from"]:
        lines["packed"] += f", and none before {tensor['packed_from']} are cached"
    if tensor["fit_tokens"]:
        lines["row state"] = f"fitted on each row's {tensor['fit_tokens']} tokens after its sinks"
    legal = ("sharings", "options", "maps")
    return lines | {f"legal {name}": " ".join(tensor[f"legal_{name}"]) or "none" for name in legal}


def legal_maps(half: Half) -> list[str]:
    """Words of maps for these keys or values."""
    if half.tensor.is_raw:
        return []
    return [word for word in map_words() if half.which in map_named(word).tensors]


def in_words(map: type[Map]) -> str:
    """The first sentence about it, without its word: of its own docstring, or of its file's."""
    own = map.__doc__ or sys.modules[map.__module__].__doc__ or ""
    sentence = " ".join(cleandoc(own).split()).split(". ")[0].rstrip(".")
    return sentence.partition(": ")[2] if sentence.startswith("`") else sentence
