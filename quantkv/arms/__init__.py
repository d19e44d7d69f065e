"""What a measurement runs: a format of ours, a plain function, a peer, or the `DynamicCache` baseline.

May be imported by rows and all that is above them: formats are parsed here, and run by measurements.
"""
