"""The decode-exact pass: one forward that equals decoding token by token through the packed cache.

May be imported by measurements and all that is above them.
"""
