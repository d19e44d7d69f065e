"""Two sets of result rows side by side: what got better, what got worse, and how sure that is.

May be imported by commands and the face.
"""

from quantkv.comparison.comparing import compare
from quantkv.comparison.outcome import Comparison

__all__ = ["Comparison", "compare"]
