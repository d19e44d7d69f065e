"""What measurements are made with: windows, clocks, statistics, divergences, processes.

May be imported by the decode-exact pass, arms, measurements and all that is above them.
"""
