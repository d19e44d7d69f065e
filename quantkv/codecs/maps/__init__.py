"""Reversible maps before a codec, one per file: the words that a format joins behind its `@`.

May be imported by the registry of codecs and all that is above it.
"""
