"""Looking inside a cache: what keys and values are like, where a format errs, what that should cost.

May be imported by reports and commands.
"""
