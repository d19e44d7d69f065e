"""Result rows as comparisons: which belong together, in which words, with which columns and lines.

May be imported by measurements and reports.
"""
