"""Is a cache format fit for a model? A cheap measurement, a verdict, its reasons, and what to try instead.

May be imported by commands and the face.
"""
