"""Everything that `generate` can do with a cache, run over every model family: the page docs/support.md."""
