"""A client of Leasehold's HTTP API, blocking and awaited; needs `leasehold[client]`.

    with Client("http://127.0.0.1:8484", token=...) as client:
        job = client.submit("SEND_EMAIL", {"to": "a@b.c"})
        client.result(job.job_id, timeout=60)

Calls are repeated when that is safe, a submission always with one idempotency key.
"""

try:
    from leasehold.client.clients import AsyncClient, Client
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise ModuleNotFoundError("leasehold.client needs httpx: pip install 'leasehold[client]'", name="httpx") from None
from leasehold.client.views import JobView, NewJob, Page

__all__ = ["AsyncClient", "Client", "JobView", "NewJob", "Page"]
