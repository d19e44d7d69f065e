"""A running sweep seen from outside: from the files of its results folder and from nothing else.

May be imported by the commands.
"""
