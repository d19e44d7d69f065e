"""How keys, or values, are stored: one half of a cache spec."""

from __future__ import annotations

from dataclasses import dataclass

from quantkv.codecs import Codec, Place, Sharing, Stored, codec_family
from quantkv.codecs.registry import METADATA, SHARING_WORDS, CodecOptions
from quantkv.errors import QuantKVError
from quantkv.policy import Window, policy_named

DEFAULT_GROUP, DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS, DEFAULT_RESERVE = 32, 32, 64, 4, 32
_WORDS = {full: word for word, full in SHARING_WORDS.items()}
GROUPED = ("token", "channel")


def default_flush(codec: str, sharing: str | None, group: int | None, wanted: int = DEFAULT_FLUSH) -> int:
    """Raw floats pack every token at once; tokens that are encoded together round the flush chunk up to whole
    groups."""
    family = codec_family(codec)
    if family.raw:
        return 1
    options = CodecOptions(_shared(sharing, group, wanted), False, METADATA["fp16"], True)
    together = family.build(options).group_tokens
    return -(-wanted // together) * together


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """How keys (or values) are stored: codec, what shares a scale, and the exact window. Tokens for lengths.

    `sharing` is one of the words token-head, token, token-all, channel, chunk-head, chunk (None for raw
    floats); `group` counts tokens for `channel` and channels for `token`. Raises QuantKVError naming the
    legal values.
    """

    codec: str
    sharing: str | None = None
    group: int | None = None
    symmetric: bool = False
    metadata: str = "fp16"
    outward: bool = True
    recent: int = DEFAULT_RECENT
    flush: int = DEFAULT_FLUSH

    def __post_init__(self) -> None:
        self._check_sharing()
        self._check_options()
        self._check_group()
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
            words = f"needs one of the sharing words {', '.join(legal)}" if legal else "takes no sharing word"
            raise QuantKVError(f"{self.codec} {words}, not {self.sharing!r}")

    def _check_options(self) -> None:
        """What the codec would ignore is refused: a row would name what it did not do."""
        said = ["sym"] if self.symmetric else []
        said += [] if self.outward else ["near"]
        said += [] if self.metadata == "fp16" else [self.metadata]
        legal = codec_family(self.codec).options
        if unknown := [option for option in said if option not in legal]:
            raise QuantKVError(
                f"{self.codec} does not take {' or '.join(map(str, unknown))}; legal options: "
                f"{', '.join(legal) or 'none'}"
            )

    def _check_group(self) -> None:
        if self.sharing in GROUPED:
            check_count("group", self.group, 2)
        elif self.group is not None:
            raise QuantKVError(
                f"only {' and '.join(GROUPED)} take a group, {self.sharing or self.codec} does not"
            )

    @property
    def bits(self) -> int | None:
        return codec_family(self.codec).bits

    @property
    def is_raw(self) -> bool:
        return codec_family(self.codec).raw

    def build(self) -> Codec:
        """The codec object for this spec."""
        sharing = _shared(self.sharing, self.group, self.flush)
        options = CodecOptions(sharing, self.symmetric, METADATA[self.metadata], self.outward)
        return codec_family(self.codec).build(options)

    def at(self, place: Place) -> Stored:
        """The method of this spec at a place; QuantKVError where it cannot stand there."""
        return Stored(self.build(), place)

    def window(self, sinks: int, reserve: int, after: int = 0, policy: str = "window") -> Window:
        return policy_named(policy)(sinks, self.recent, self.flush, reserve, after)

    def __str__(self) -> str:
        """Codec, sharing and options; the window is printed by the cache spec."""
        default_word = default_sharing(self.codec)
        word = "" if self.sharing == default_word else f"-{_WORDS[self.sharing or '']}"
        options = [f"g{self.group}"] if self.group else []
        options += ["sym"] if self.symmetric else []
        options += [self.metadata] if self.metadata != "fp16" else []
        options += [] if self.outward else ["near"]
        return self.codec + word + ("@" + ".".join(options) if options else "")


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
