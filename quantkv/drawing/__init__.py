"""How figures look: a style per format, axes, legends, bytes that are the same every time.

May be imported by studies, measurements and reports.
"""
