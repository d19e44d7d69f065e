"""Where the workers of a sweep run: a module for each executor, with ``run(sweep, console)``.

May be imported by ``quantkv.sweep.run``, where a sweep enters.
"""
