"""Retrieval: what a model still finds in a packed cache that it finds in the exact one.

May be imported by sweeps, and through `rows/kinds.py` by all that treats kinds alike.
"""
