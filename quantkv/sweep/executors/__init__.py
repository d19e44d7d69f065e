"""Where the workers of a sweep run: a module for each executor, with ``run(sweep, console)``."""
