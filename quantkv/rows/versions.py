"""Versions that are part of every key, beside those of the metrics."""

CODEC_VERSION = 2
"""Goes up when a codec stores other codes for the same input, so that older rows are measured again."""

METRIC_VERSIONS: dict[str, int] = {"quality": 2, "speed": 1, "memory": 2, "retrieval": 1, "generation": 1}
"""Of each kind of number. It goes up whenever the same run would give another value, so that old results are
never mixed with new ones unnoticed."""
