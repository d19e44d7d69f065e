"""Generation: how far long texts through a packed cache stay those of the exact one.

May be imported by sweeps, and through `rows/kinds.py` by all that treats kinds alike.
"""
