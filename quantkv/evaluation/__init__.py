"""Measuring a cache format: what it costs in quality, what it gains in speed, what it holds in memory.

Every number is made as docs/PROTOCOL.md says. The version of a kind of number goes up whenever the same
run would give another value, so that old results are never mixed with new ones unnoticed.
"""

METRIC_VERSIONS: dict[str, int] = {"quality": 2, "speed": 1, "memory": 2, "retrieval": 1, "generation": 1}
