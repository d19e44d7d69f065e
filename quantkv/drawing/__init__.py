"""How figures look: a style per format, axes, lines, legends, bytes that are the same every time.

May be imported by all that draw or name formats in order: studies, the planner, measurements and reports.
"""
