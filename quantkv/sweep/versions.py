"""Versions that are part of every key, beside those of the metrics."""

CODEC_VERSION = 2
"""Goes up when a codec stores other codes for the same input, so that older rows are measured again."""
