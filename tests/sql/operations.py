"""Jobs of all sorts, for the tests of what operators see and do."""

from datetime import timedelta

ERROR = {"class": "ValueError", "message": "no such thing", "traceback": "Traceback: line 1"}


def die(session, kind="k", error=ERROR, **options):
    job = session.one("enqueue", kind=kind, max_attempts=1, **options)
    assert session.one("claim_job", job_id=job, worker="w") is True
    session.one("fail", worker="w", id=job, attempt=1, error=error)
    return job


def variety(session):
    """Jobs in every state, some of them with keys, tags and errors; returns their ids by state."""
    found = {
        "created": [session.one("enqueue", kind="k", run_after=timedelta(hours=1)), session.one("submit", kind="k")],
        "dead": [die(session), die(session, queue="mail"), die(session, error=ERROR | {"class": "OSError"})],
        "retry": [session.one("enqueue", kind="k", tags=["red"])],
        "success": [session.one("enqueue", kind="k", queue=queue) for queue in ("mail", "default")],
        "running": [session.one("enqueue", kind=kind, exclusive_key="x") for kind in ("k", "l")][:1],
    }
    parked = session.values("select id from jobs where exclusive_key = 'x' and id <> %s", found["running"][0])
    for job in [*found["retry"], *found["success"], *found["running"]]:
        assert session.one("claim_job", job_id=job, worker="w") is True
    session.one("fail", worker="w", id=found["retry"][0], attempt=1, retry_after=3600, error=ERROR)
    session.column("complete", worker="w", ids=sorted(found["success"]), attempts=[1, 1])
    found["queued"] = parked + [
        session.one("enqueue", kind=kind, queue=queue, priority=priority, tags=["red", "blue"])
        for kind in ("k", "l")
        for queue in ("default", "mail")
        for priority in (0, 7)
    ]
    return found
