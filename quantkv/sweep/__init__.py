"""Sweeps: a YAML file becomes a grid of cells, each finished cell one JSON file, a second run the rest.

May be imported by watching, commands and the face.
"""
