"""Kinds of measurement, a folder for each: how it is run, its section of a row, its figures.

May be imported by checking, reports and sweeps.
"""
