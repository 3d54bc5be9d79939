"""Many clients, many tries of the same keys, several API servers, of which some are killed: one job for each key."""

import asyncio
import random
from collections import defaultdict
from contextlib import ExitStack

import httpx
import pytest

from tests.http.conftest import connect
from tests.http.running import Served, serving
from tests.survival.conftest import rounds


class Fleet:
    """Some servers, and clients who go to another one when theirs does not answer."""

    def __init__(self, servers: list[Served], *, clients: int, keys: int, tries: int) -> None:
        self._servers = servers
        self._clients = clients
        self._work = [f"key {n}" for n in range(keys)] * tries
        random.Random(clients).shuffle(self._work)
        self.ids: dict[str, set[str]] = defaultdict(set)
        self.answered = 0
        self.cut = 0
        """Requests that a killed server did not answer."""

    async def run(self, kill: int) -> None:
        """Let every try be answered; kill so many servers while they work, at equal distances."""
        total = len(self._work)
        doomed = {total * (n + 1) // (kill + 1): self._servers[n] for n in range(kill)}
        limits = httpx.Limits(max_connections=self._clients, max_keepalive_connections=self._clients)
        async with httpx.AsyncClient(timeout=60, limits=limits) as http:
            clients = (self._client(http, n, doomed) for n in range(self._clients))
            ended = await asyncio.gather(*clients, return_exceptions=True)  # all, before their connections are closed
        for error in filter(None, ended):
            raise error

    async def _client(self, http: httpx.AsyncClient, turn: int, doomed: dict[int, Served]) -> None:
        while self._work:
            key = self._work.pop()
            while not await self._try(http, key, turn):
                turn += 1
            turn += 1
            self.answered += 1
            if (victim := doomed.pop(self.answered, None)) is not None:
                victim.process.kill()

    async def _try(self, http: httpx.AsyncClient, key: str, turn: int) -> bool:
        url = self._servers[turn % len(self._servers)].url
        body = {"jobType": "k", "payload": {"key": key}, "idempotencyKey": key, "idempotency": "strict"}
        try:
            answer = await http.post(f"{url}/jobs", json=body)
        except httpx.TransportError:
            self.cut += 1
            return False
        if answer.status_code == 503:
            return False
        assert answer.status_code == 202, answer.text
        self.ids[key].add(answer.json()["jobId"])
        return True


async def fleet(dsn: str, *, clients: int, keys: int, tries: int, servers: int = 3, kill: int = 2) -> Fleet:
    with ExitStack() as stack:
        running = [stack.enter_context(serving(dsn)) for _ in range(servers)]
        made = Fleet(running, clients=clients, keys=keys, tries=tries)
        await made.run(kill)
        assert [one.process.poll() is None for one in running] == [n >= kill for n in range(servers)]
    with connect(dsn) as sql:
        rows = sql.execute("select idempotency_key as key, id::text, state::text, accepted from jobs").fetchall()
    assert len(rows) == keys
    assert {row["key"]: {row["id"]} for row in rows} == made.ids, "one id per key, and the one that the clients know"
    assert {(row["state"], row["accepted"]) for row in rows} == {("queued", True)}
    return made


@pytest.mark.timeout(300)
async def test_one_job_for_each_key_whatever_the_number_of_clients_tries_and_dead_servers(dsn: str) -> None:
    made = await fleet(dsn, clients=rounds(16, 64), keys=rounds(120, 1000), tries=rounds(4, 8))
    assert made.answered == rounds(120, 1000) * rounds(4, 8)
    assert made.cut > 0, "no request was under way when a server was killed"
    print(f"{made.answered} tries answered, {made.cut} cut off, {len(made.ids)} keys, one id each")


async def test_the_fleet_catches_a_database_without_uniqueness(dsn: str) -> None:
    with connect(dsn) as sql:
        sql.execute("drop index jobs_idempotency_key")
    with pytest.raises(AssertionError):
        await fleet(dsn, clients=8, keys=10, tries=4, servers=1, kill=0)
