"""The commands of `quantkv`, registered in `cli`. They import what costs time only when they run.

Imported by nothing.
"""
