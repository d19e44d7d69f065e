"""Retrieval: what a model still finds in a packed cache that it finds in the exact one."""
