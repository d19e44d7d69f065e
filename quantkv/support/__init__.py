"""Everything that `generate` can do with a cache, run over every model family (docs/support.md).

Imported by nothing: `python -m quantkv.support.architectures`.
"""
