"""Memory: bytes held and peaks, each arm in a process of its own.

May be imported by benchmarks, and through `rows/kinds.py` by all that treats kinds alike.
"""
