"""Quality: perplexity and KL divergence through the packed cache, beside the exact one.

May be imported by checking, pages, sweeps and the face, and through `rows/kinds.py` by all that treats kinds
alike.
"""
