"""Methods: how keys or values become the packed fields of a page and back, one codec or map per file.

May be imported by store and all that is above it.
"""

from quantkv.codecs.base import Codec
from quantkv.codecs.fields import Field, Sharing, codes_field, compute_dtype
from quantkv.codecs.maps.map import Map
from quantkv.codecs.place import Place, Rope, Tokens
from quantkv.codecs.registry import CodecFamily, codec_family, codec_names, register_codec, register_map
from quantkv.codecs.rounding import saturated
from quantkv.codecs.stored import Stored
from quantkv.codecs.terms import Affine, Codes, Float8, LowRank, Plain, Scale, Sparse, Table

__all__ = [
    "Affine",
    "Codec",
    "CodecFamily",
    "Codes",
    "Field",
    "Float8",
    "LowRank",
    "Map",
    "Place",
    "Plain",
    "Rope",
    "Scale",
    "Sharing",
    "Sparse",
    "Stored",
    "Table",
    "Tokens",
    "codec_family",
    "codec_names",
    "codes_field",
    "compute_dtype",
    "register_codec",
    "register_map",
    "saturated",
]
