"""What the pages show: jobs in every state, and something of everything else."""

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.http.conftest import Sql

WORKER = "vm:4711:ab12"
ERROR = {
    "class": "shop.ConnectionResetError",
    "message": "[Errno 104] Connection reset by peer",
    "traceback": 'Traceback (most recent call last):\n  File "shop.py", line 88, in bill\nConnectionResetError\n',
}


@dataclass
class World:
    """The jobs by what they are for."""

    sql: Sql
    jobs: dict[str, UUID] = field(default_factory=dict)

    def enqueue(self, kind: str, payload: Any = None, **options: Any) -> UUID:
        named = "".join(f", {name} => %({name})s" for name in options)
        row = self.sql.execute(
            f"select enqueue(kind => %(kind)s, payload => %(payload)s::jsonb{named}) as id",
            {"kind": kind, "payload": json.dumps({} if payload is None else payload), **options},
        ).fetchone()
        assert row is not None
        found: UUID = row["id"]
        return found

    def claim(self, queue: str, worker: str = WORKER) -> dict[str, Any]:
        row = self.sql.execute("select id, attempt from claim(%s, queues => array[%s])", [worker, queue]).fetchone()
        assert row is not None, f"nothing to claim in {queue}"
        return row

    def fail(self, claimed: dict[str, Any], error: dict[str, str] | None = None, *, fatal: bool = True) -> None:
        self.sql.execute(
            "select fail(%s, %s, %s, error => %s::jsonb, fatal => %s)",
            [WORKER, claimed["id"], claimed["attempt"], json.dumps(error or ERROR), fatal],
        )

    def dead(self, kind: str, count: int = 1, *, queue: str | None = None, **options: Any) -> list[UUID]:
        queue = queue or f"graves of {kind}"  # of its own: what was retried there must not be claimed instead
        found = []
        for _ in range(count):
            self.enqueue(kind, queue=queue, **options)
            claimed = self.claim(queue)
            self.fail(claimed)
            found.append(claimed["id"])
        return found

    def state(self, job: UUID) -> str:
        row = self.sql.execute("select state, reason from jobs where id = %s", [job]).fetchone()
        assert row is not None
        return "cancelled" if row["reason"] == "cancelled" else str(row["state"])


def made(sql: Sql) -> World:
    """Something of everything."""
    world = World(sql)
    sql.execute("select start_worker(%s, 'build-7', 4711, array['mail', 'busy'], slots => 6)", [WORKER])
    world.jobs["dead"] = world.dead("BILL", 3, queue="graves", tags=["eu"])[0]
    world.enqueue("GREET", queue="done")
    done = world.claim("done")
    sql.execute(
        "select complete(%s, array[%s], array[%s], array['{\"sent\": 1.10}'::jsonb])",
        [WORKER, done["id"], done["attempt"]],
    )
    world.jobs["success"] = done["id"]
    payload = {"invoice": 17, "password": "hunter2", "amount": 12.50, "to": {"iban": "DE00"}}
    world.jobs["waiting"] = world.enqueue("PAY", payload, queue="pay", run_after="1 hour", exclusive_key="account-1")
    world.enqueue("IMPORT", {"file": "a.csv"}, queue="busy")
    running = world.claim("busy")
    world.jobs["running"] = running["id"]
    sql.execute(
        "select heartbeat(%s, array[%s], array[%s], null, '{0.4}', '{reading}')",
        [WORKER, running["id"], running["attempt"]],
    )
    sql.execute(
        "update jobs set lease_expires_at = clock_timestamp() + interval '1 hour' where id = %s", [running["id"]]
    )
    world.jobs["queued"] = world.enqueue("SEND", {"to": "a@example.com"}, queue="mail")
    world.enqueue("WRITE", queue="letters")
    sql.execute("select pause('letters', 'no paper', 'ada')")
    sql.execute("select set_limit('kind', 'IMPORT', 5)")
    sql.execute("select schedule_put('nightly', 'REPORT', cron => '0 3 * * *', queue => 'reports')")
    return world
