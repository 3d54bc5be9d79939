"""Enqueues jobs, one after the other, until it is asked to stop; says the id of each that was acknowledged."""

import signal
import time
from uuid import uuid4

from deployed_tasks import app, deployed, deployed_in_thread

going = True


def _stop(*_: object) -> None:
    global going  # noqa: PLW0603 (a program of one page)
    going = False


def main() -> None:
    """Enqueue until SIGTERM."""
    signal.signal(signal.SIGTERM, _stop)
    number = 0
    while going:
        number += 1
        task = deployed if number % 2 else deployed_in_thread
        print(task.using(idempotency_key=str(uuid4())).enqueue(number).id, flush=True)
        time.sleep(0.01)
    app.close()


if __name__ == "__main__":
    main()
