"""How keys, or values, are stored: one half of a cache spec."""

from __future__ import annotations

from dataclasses import dataclass

from quantkv.codecs import Codec, Sharing, codec_family
from quantkv.codecs.registry import METADATA, SHARING_WORDS, CodecOptions
from quantkv.errors import QuantKVError
from quantkv.policy import Window, policy_named

DEFAULT_GROUP, DEFAULT_FLUSH, DEFAULT_RECENT, DEFAULT_SINKS, DEFAULT_RESERVE = 32, 32, 64, 4, 32
_WORDS = {full: word for word, full in SHARING_WORDS.items()}
_GROUPED = ("token", "channel")


def default_flush(codec: str, sharing: str | None, group: int | None, wanted: int = DEFAULT_FLUSH) -> int:
    """Raw floats pack every token at once; groups along tokens round the flush chunk up to whole groups."""
    if not codec_family(codec).scaled:
        return 1
    return -(-wanted // group) * group if sharing == "channel" and group else wanted


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
        self._check_group()
        check_count("recent", self.recent, 0)
        check_count("flush", self.flush, 1)
        if self.sharing == "channel" and self.flush % (self.group or 1):
            raise QuantKVError(
                f"flush {self.flush} is not a multiple of the group of {self.group} tokens; legal: "
                f"{self.group}, {2 * (self.group or 1)}, {4 * (self.group or 1)}, …"
            )

    def _check_sharing(self) -> None:
        family = codec_family(self.codec)
        if family.scaled and self.sharing not in _WORDS:
            raise QuantKVError(
                f"{self.codec} needs a sharing word, not {self.sharing!r}; legal words: {', '.join(_WORDS)}"
            )
        plain = (self.symmetric, self.metadata, self.outward, self.sharing) == (False, "fp16", True, None)
        if not family.scaled and not plain:
            raise QuantKVError(f"{self.codec} stores plain floats: it takes no sharing word and no options")
        if self.metadata not in METADATA:
            raise QuantKVError(f"metadata dtype {self.metadata!r}; legal: {', '.join(METADATA)}")
        if (self.symmetric or not self.outward) and not family.affine:
            raise QuantKVError(f"{self.codec} takes neither sym nor near; both belong to the int codecs")

    def _check_group(self) -> None:
        if self.sharing in _GROUPED:
            check_count("group", self.group, 2)
        elif self.group is not None:
            raise QuantKVError(
                f"only {' and '.join(_GROUPED)} take a group, {self.sharing or self.codec} does not"
            )

    @property
    def bits(self) -> int | None:
        return codec_family(self.codec).bits

    @property
    def is_raw(self) -> bool:
        return not codec_family(self.codec).scaled

    def build(self) -> Codec:
        """The codec object for this spec."""
        options = CodecOptions(self._sharing(), self.symmetric, METADATA[self.metadata], self.outward)
        return codec_family(self.codec).build(options)

    def window(self, sinks: int, reserve: int, after: int = 0, policy: str = "window") -> Window:
        return policy_named(policy)(sinks, self.recent, self.flush, reserve, after)

    def _sharing(self) -> Sharing | None:
        by_word = {
            "token-head": Sharing(),
            "token": Sharing(channels=self.group),
            "token-all": Sharing(all_heads=True),
            "channel": Sharing(tokens=self.group or 1, channels=1),
            "chunk-head": Sharing(tokens=self.flush),
            "chunk": Sharing(tokens=self.flush, all_heads=True),
        }
        return by_word[self.sharing] if self.sharing else None

    def __str__(self) -> str:
        """Codec, sharing and options; the window is printed by the cache spec."""
        default_word = default_sharing(self.codec)
        word = "" if self.sharing == default_word else f"-{_WORDS[self.sharing or '']}"
        options = [f"g{self.group}"] if self.group else []
        options += ["sym"] if self.symmetric else []
        options += [self.metadata] if self.metadata != "fp16" else []
        options += [] if self.outward else ["near"]
        return self.codec + word + ("@" + ".".join(options) if options else "")


def default_sharing(codec: str) -> str | None:
    """8-bit floats share per token and head when no word is given; ints always name their word."""
    family = codec_family(codec)
    return "token-head" if family.scaled and not family.affine else None


MOST = 2**31 - 1
"""No length or group is larger: tensors could not be indexed by it."""


def check_count(name: str, value: int | None, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise QuantKVError(f"{name} must be an integer of at least {least} and at most {MOST}, not {value!r}")
