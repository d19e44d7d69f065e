"""Keeps transformers' progress bars and load-time chatter off a terminal where a live display may run."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from transformers.utils import logging as transformers_logging


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def quiet() -> Iterator[list[logging.LogRecord]]:
    """Silence transformers below errors inside the block, then put its settings back. What it would have
    warned of is in the list, for those whom it concerns."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    root, listener = transformers_logging.get_logger(), _Listener()
    before, root.handlers, root.propagate = (root.handlers, root.propagate), [listener], False
    transformers_logging.set_verbosity_warning()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield listener.records
    finally:
        root.handlers, root.propagate = before
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
        for record in listener.records:
            if record.levelno >= logging.ERROR:
                root.handle(record)
