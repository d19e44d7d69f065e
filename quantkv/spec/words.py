"""What follows the `@` of a format: a group and the codec's own options, maps in the order in which they
apply, and how many tokens their state is fitted on.

    int4-head@had    int4-channel@g16.sym.had    int4-head@unrope.ctr.w128    k8v4@had    kivi-2@had

Said once for keys and values, options go to tensors of the name's own codec, maps to both, as far as they are
maps of both: those of keys alone go to the keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from quantkv.codecs.place import Which
from quantkv.codecs.registry import map_named, map_words
from quantkv.errors import QuantKVError
from quantkv.named import PUBLISHED, TENSOR_TEXTS
from quantkv.wording.suggestions import did_you_mean

_FIT = re.compile(r"w\d+")


@dataclass(frozen=True)
class Words:
    """`own` are the group and the codec's options, `fit` is `wN`, or empty where none is said."""

    own: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    fit: str = ""

    @classmethod
    def of(cls, text: str) -> Words:
        """Those of a tensor's text. QuantKVError where one is said twice, or none after the `@`."""
        _, at, tail = text.partition("@")
        words = tail.split(".") if at else []
        if twice := [word for word in words if words.count(word) > 1 or not word]:
            raise QuantKVError(
                f"{text!r} says {twice[0]} twice" if twice[0] else f"{text!r} has a word missing"
            )
        maps = tuple(word for word in words if word in map_words())
        fits = [word for word in words if _FIT.fullmatch(word)]
        if len(fits) > 1:
            raise QuantKVError(f"{text!r} says {fits[0]} and {fits[1]}")
        own = tuple(word for word in words if word not in (*maps, *fits))
        return cls(own, maps, "".join(fits))

    def only(self, tensor: Which) -> Words:
        """Those for keys, or for values, of what is said for both. `wN` goes where a map is fitted; if that
        is nowhere, to both, to be refused."""
        maps = tuple(word for word in self.maps if tensor in map_named(word).tensors)
        elsewhere = any(map_named(word).fits for word in self.maps)
        fits = any(map_named(word).fits for word in maps)
        return Words(self.own, maps, self.fit if fits or not elsewhere else "")

    def after(self, head: str) -> str:
        """As a text behind a codec and its sharing word."""
        words = [*self.own, *self.maps, *([self.fit] if self.fit else [])]
        return head + ("@" + ".".join(words) if words else "")


def base_texts(base: str) -> tuple[str, str]:
    """The key and value texts that a name stands for. Raises QuantKVError for options of a name that has no
    tensor of its own codec."""
    head, words = base.partition("@")[0], Words.of(base)
    texts = TENSOR_TEXTS.get(head, (head, head))
    if words.own and all(text.partition("@")[0] != head for text in texts):
        raise QuantKVError(only_maps(head, words))
    key, value = (_with(text, words.only(which), head) for text, which in zip(texts, BOTH, strict=True))
    return key, value


BOTH: tuple[Which, Which] = ("key", "value")


def _with(text: str, words: Words, head: str) -> str:
    """A tensor's text with the maps of `words`, and with its options where it is of the name's own codec."""
    own, usual = text.partition("@")[0], Words.of(text).own
    return replace(words, own=words.own if own == head and words.own else usual).after(own)


def only_maps(head: str, words: Words) -> str:
    """That a name of a pair takes no options."""
    wrong, maps = words.own[0], map_words()
    hint = f"{did_you_mean(wrong, maps)}; for others write k.<codec>@<options>+v.<codec>@<options>"
    return f"{head} takes no options but maps ({' '.join(maps)}), not {wrong!r}{hint}"


def published(base: str) -> tuple[str, Words] | None:
    """A published scheme and the maps said with it; None for other names. QuantKVError for options."""
    head = base.partition("@")[0]
    if head not in PUBLISHED:
        return None
    if (words := Words.of(base)).own:
        raise QuantKVError(only_maps(head, words))
    return head, words
