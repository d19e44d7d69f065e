"""One command of `quantkv` per file. They import what costs time only when they run."""
