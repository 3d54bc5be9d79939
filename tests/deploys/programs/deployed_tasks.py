"""The tasks of both releases: they say which release has run them."""

import leasehold
from leasehold import App, current_job

app = App()


@app.task(kind="deployed", lease=30, max_attempts=3)
async def deployed(number: int) -> str:
    """Give the place of the package that runs this."""
    current_job().progress(0.5, str(number))
    return str(leasehold.__file__)


@app.task(kind="deployed_in_thread", lease=30, max_attempts=3)
def deployed_in_thread(number: int) -> str:
    """The same in a thread."""
    return str(leasehold.__file__)
