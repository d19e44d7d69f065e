"""Rows: what one is, where it was made, the files of a results folder and who claims a cell of it.

May be imported by measurements and all that is above them; knows no kind of measurement by itself.
"""
