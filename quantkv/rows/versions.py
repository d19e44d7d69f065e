"""The version that is part of every key, beside that of its kind of number."""

CODEC_VERSION = 2
"""Goes up when a codec stores other codes for the same input, so that older rows are measured again."""
