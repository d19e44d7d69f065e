"""Tables and figures from result rows, and from nothing else.

``write.write_report`` makes the files, ``terminal.terminal_table`` prints the summary.
May be imported by sweeps and commands.
"""
