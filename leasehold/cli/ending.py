"""A process that ends, whatever the code of tasks does that still runs in it."""

import logging
import os
import threading
import time


def end_within(seconds: float, code: int) -> None:
    """End this process with this exit code, at once and without anything more, unless it has ended by then."""
    threading.Thread(target=_end, args=(seconds, code), name="leasehold-end", daemon=True).start()


def _end(seconds: float, code: int) -> None:
    time.sleep(seconds)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(code)
