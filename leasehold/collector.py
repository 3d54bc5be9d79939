"""Python's garbage collector, for a process that makes and drops thousands of objects a millisecond."""

import gc


def settle() -> None:
    """Leave alone what has been made so far, which stays for ever, and look for garbage less often.

    Nearly everything goes by its reference count. At the usual threshold the collector would walk over all jobs in hand
    several times while they run: a fifth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
