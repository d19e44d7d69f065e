"""How keys, or values, are stored: one half of a cache spec."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from quantkv.codecs import Codec, Place, Sharing, Stored, codec_family
from quantkv.codecs.options import check_options, read_options, said_options
from quantkv.codecs.registry import SHARING_WORDS, map_named, map_words
from quantkv.errors import QuantKVError
from quantkv.policy import Window, policy_named

DEFAULT_GROUP, DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS, DEFAULT_RESERVE = 32, 32, 64, 4, 32
DEFAULT_FIT = 256
_WORDS = {full: word for word, full in SHARING_WORDS.items()}
GROUPED = ("token", "channel")


def default_flush(
    codec: str, sharing: str | None, group: int | None, wanted: int = DEFAULT_FLUSH, options: Any = None
) -> int:
    """Raw floats pack every token at once; tokens that are encoded together round the flush chunk up to whole
    groups."""
    family = codec_family(codec)
    if family.raw:
        return 1
    together = family.build(_shared(sharing, group, wanted), options or family.options()).group_tokens
    return -(-wanted // together) * together


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """How keys (or values) are stored: codec, what shares a scale, and the exact window. Tokens for lengths.

    `sharing` is one of the words token-head, token, token-all, channel, chunk-head, chunk (None for raw
    floats); `group` counts tokens for `channel` and channels for `token`. `options` are an instance of the
    codec's own dataclass, its defaults when None. `maps` are words of maps in the order in which they apply;
    where one of them fits state, it does so on each row's first `fit_tokens` tokens after the sinks, 256 when
    0. Raises QuantKVError naming the legal values.
    """

    codec: str
    sharing: str | None = None
    group: int | None = None
    options: Any = None
    maps: tuple[str, ...] = ()
    fit_tokens: int = 0
    recent: int = DEFAULT_RECENT
    flush: int = DEFAULT_FLUSH

    def __post_init__(self) -> None:
        self._check_sharing()
        family = codec_family(self.codec)
        if self.options is None:
            object.__setattr__(self, "options", family.options())
        check_options(self.codec, family.options, self.options)
        self._check_group()
        self._check_maps()
        check_count("recent", self.recent, 0)
        check_count("flush", self.flush, 1)
        together = self.build().group_tokens
        if self.flush % together:
            raise QuantKVError(
                f"flush {self.flush} is not a multiple of the group of {together} tokens; legal: "
                f"{together}, {2 * together}, {4 * together}, …"
            )

    def _check_sharing(self) -> None:
        legal = codec_family(self.codec).sharings
        if self.sharing not in (legal or (None,)):
            named = ", ".join(f"{word} (-{_WORDS[word]})" for word in legal)
            words = f"needs one of the sharing words {named}" if legal else "takes no sharing word"
            raise QuantKVError(f"{self.codec} {words}, not {self.sharing!r}")

    def _check_group(self) -> None:
        if self.sharing in GROUPED:
            check_count("group", self.group, 2)
        elif self.group is not None:
            raise QuantKVError(
                f"only {' and '.join(GROUPED)} take a group, {self.sharing or self.codec} does not"
            )

    def _check_maps(self) -> None:
        if not isinstance(self.maps, tuple):
            raise QuantKVError(f"maps must be a tuple of words, not {self.maps!r}")
        fits = [word for word in self.maps if map_named(word).fits]
        if self.maps and self.is_raw:
            raise QuantKVError(f"{self.codec} stores plain floats and takes no maps: {', '.join(self.maps)}")
        self._check_size()
        if twice := [word for word in self.maps if self.maps.count(word) > 1]:
            raise QuantKVError(f"the map {twice[0]} stands twice in {'.'.join(self.maps)}")
        if fits and not self.fit_tokens:
            object.__setattr__(self, "fit_tokens", DEFAULT_FIT)
        if fits:
            check_count("fit_tokens", self.fit_tokens, 2)
        elif self.fit_tokens:
            raise QuantKVError(
                f"w{self.fit_tokens} has no effect: no map of {self} is fitted on tokens; those that are: "
                f"{', '.join(word for word in map_words() if map_named(word).fits)}"
            )

    def _check_size(self) -> None:
        """Raise for a codec of numbers of unit size behind no map that makes them."""
        if codec_family(self.codec).unit and not any(map_named(word).unit for word in self.maps):
            said = self.codec + "@" + "".join(f"{word}." for word in self.maps)
            legal = " or ".join(said + word for word in map_words() if map_named(word).unit)
            raise QuantKVError(f"{self.codec} wants numbers of unit size: {legal}")

    def __reduce__(self) -> Any:
        """Options as words: their class may lie in a file that is imported only when it is asked for."""
        return _again, (
            {f.name: getattr(self, f.name) for f in fields(self) if f.name != "options"},
            said_options(self.options),
        )

    @property
    def bits(self) -> int | None:
        return codec_family(self.codec).bits

    @property
    def is_raw(self) -> bool:
        return codec_family(self.codec).raw

    @property
    def shared(self) -> Sharing | None:
        """What shares a scale by its word; a codec may declare otherwise."""
        return _shared(self.sharing, self.group, self.flush)

    @property
    def positions(self) -> bool:
        """Whether some map needs to know the positions of tokens."""
        return any(map_named(word).positions for word in self.maps)

    def build(self) -> Codec:
        """The codec object for this spec."""
        return codec_family(self.codec).build(_shared(self.sharing, self.group, self.flush), self.options)

    def at(self, place: Place) -> Stored:
        """The method of this spec at a place; QuantKVError where it cannot stand there."""
        return Stored(self.build(), place, tuple(map_named(word)() for word in self.maps), self.fit_tokens)

    def window(self, sinks: int, reserve: int, after: int = 0, policy: str = "window") -> Window:
        """Nothing is packed before the state of maps is fitted, or before more than `after` tokens are
        cached. QuantKVError for policies that pack before."""
        fitted = sinks + self.fit_tokens - 1 if self.fit_tokens else 0
        window = policy_named(policy)(sinks, self.recent, self.flush, reserve, max(after, fitted))
        if window.boundary(window.after) > sinks:
            why = f"the maps of {self} are fitted" if fitted >= after else f"q{after} allows"
            raise QuantKVError(
                f"the policy {policy!r} packs tokens before {why}: its boundary ignores `after`"
            )
        return window

    def __str__(self) -> str:
        """Codec, sharing, options and maps; the window is printed by the cache spec."""
        default_word = default_sharing(self.codec)
        word = "" if self.sharing == default_word else f"-{_WORDS[self.sharing or '']}"
        words = [f"g{self.group}"] if self.group else []
        words += [*said_options(self.options), *self.maps]
        words += [f"w{self.fit_tokens}"] if self.fit_tokens not in (0, DEFAULT_FIT) else []
        return self.codec + word + ("@" + ".".join(words) if words else "")


def _again(given: dict[str, Any], words: list[str]) -> TensorSpec:
    return TensorSpec(**given, options=read_options(codec_family(given["codec"]).options, words))


def _shared(sharing: str | None, group: int | None, flush: int) -> Sharing | None:
    by_word = {
        "token-head": Sharing(),
        "token": Sharing(channels=group),
        "token-all": Sharing(all_heads=True),
        "channel": Sharing(tokens=group or 1, channels=1),
        "chunk-head": Sharing(tokens=flush),
        "chunk": Sharing(tokens=flush, all_heads=True),
    }
    return by_word[sharing] if sharing else None


def default_sharing(codec: str) -> str | None:
    """The first word that the codec takes, when none is said; ints always name theirs."""
    family = codec_family(codec)
    return family.sharings[0] if family.sharings and not family.affine else None


MOST = 2**31 - 1
"""No length or group is larger: tensors could not be indexed by it."""


def check_count(name: str, value: int | None, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise QuantKVError(f"{name} must be an integer of at least {least} and at most {MOST}, not {value!r}")
