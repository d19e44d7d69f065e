"""`quantkv bench`: how fast attention, decoding and packing are, beside what the machine can do at best.

May be imported by its command.
"""
