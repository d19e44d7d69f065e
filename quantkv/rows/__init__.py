"""Cells and rows: what is asked, by which axes, and its key; what a row is, its files, who claims its cell.

May be imported by studies, measurements and all that is above them. `kinds` is the one list of kinds of
measurement; what a kind is, its own folder says.
"""
