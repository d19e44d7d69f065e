"""Codecs: pure functions between exact keys or values and the packed fields of a page, one method per file.

May be imported by store and all that is above it.
"""

from quantkv.codecs.base import Codec, Field, Kernel, Sharing, compute_dtype
from quantkv.codecs.registry import CodecFamily, codec_family, codec_names, register_codec
from quantkv.codecs.rounding import saturated

__all__ = [
    "Codec",
    "CodecFamily",
    "Field",
    "Kernel",
    "Sharing",
    "codec_family",
    "codec_names",
    "compute_dtype",
    "register_codec",
    "saturated",
]
