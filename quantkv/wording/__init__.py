"""Numbers, names and messages as people read them, on a terminal, in a page and in LaTeX.

May be imported by all; knows nothing of caches.
"""
