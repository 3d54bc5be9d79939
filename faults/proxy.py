"""Between programs and PostgreSQL: passes everything on, until it has to cut, and where.

It runs on a thread of its own. Calls are recognised by the SQL function they call, prepared statements too.
"""

import asyncio
import random
import re
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from faults.wire import Answers, Questions, Round

PLACES: Final = ("before", "race", "answer", "middle")
"""Where to cut: the question is not passed on; it is, and at once cut; it was answered; half of the answer was."""

RAISE: Final = "raise"
"""Another place: the server is asked something that it answers with an error instead; the way is its SQLSTATE."""

WAYS: Final = ("reset", "close", "hole")
"""How: a reset, an orderly end, or silence first and a reset later."""

STALLS: Final = ("freeze", "mute", "deaf", "slow")
"""What a line may suffer without being cut: nothing passes, no answer passes, no question does, or all very slowly."""

Knife = Callable[[str], tuple[str, str] | None]
"""Asked for each call by the name of its function; returns place and way, or None to let it pass."""


SLOW: Final = 2_000.0
"""Bytes a second of a line that is stalled by `slow`."""


class Cutter:
    """A knife with a quota for each function, led by chance."""

    def __init__(self, chance: random.Random, quotas: dict[str, int], *, share: float) -> None:
        self._chance = chance
        self._left = dict(quotas)
        self._share = share
        self.cuts: Counter[tuple[str, str]] = Counter()
        """Cuts so far, by function and place."""

    def __call__(self, function: str) -> tuple[str, str] | None:
        """Whether to cut this one."""
        if self._left.get(function, 0) <= 0 or self._chance.random() >= self._share:
            return None
        self._left[function] -= 1
        place = self._chance.choice(PLACES)
        self.cuts[function, place] += 1
        # Silence takes longer than a lease: a few of them are enough.
        return place, self._chance.choices(WAYS, [10, 10, 0.2])[0]

    @property
    def left(self) -> int:
        """Cuts still to be made."""
        return sum(self._left.values())

    def of(self, function: str) -> int:
        """Cuts around one function."""
        return sum(count for (name, _), count in self.cuts.items() if name == function)


@dataclass(frozen=True, slots=True, eq=False)
class Stall:
    """What is done to lines whose name matches: to those of a moment only, or also to all that come."""

    how: str
    pattern: re.Pattern[str]
    lines: "frozenset[_Line] | None" = None
    """None: to those that come, too."""

    def strikes(self, line: "_Line", *, answer: bool) -> bool:
        """Whether what goes this way on the line is held."""
        if self.how not in ("freeze", "mute" if answer else "deaf"):
            return False
        return self.meets(line)

    def meets(self, line: "_Line") -> bool:
        """Whether it is about this line."""
        if self.lines is not None and line not in self.lines:
            return False
        return self.pattern.search(line.name) is not None


class Proxy:
    """Listens on a port of its own and passes on to the server of `dsn`."""

    def __init__(self, dsn: str, knife: Knife | None = None, *, hole: float = 3.0) -> None:
        target = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        self._host, self._server_port = target["host"], int(target.get("port", 5432))
        self.knife = knife
        """Replace it at any time; None: nothing is cut."""
        self.hole = hole
        """Seconds of silence before the reset of a black hole."""
        self.pace: float | None = None
        """Bytes a second each way, if the line shall be slow."""
        self.stalls: set[Stall] = set()
        """What is done to lines by their name, the application_name of who connects."""
        self.lines: set[_Line] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults-proxy", daemon=True)
        self._thread.start()
        self._listener = self._wait(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._listener.sockets[0].getsockname()[1]
        login = target["user"] + (f":{target['password']}" if "password" in target else "")
        self.dsn = f"postgresql://{login}@127.0.0.1:{port}/{target['dbname']}?sslmode=disable&gssencmode=disable"

    def cut_all(self) -> int:
        """Reset every connection there is; returns how many."""
        return int(self._wait(self._cut_all()))

    def stall(self, how: str, pattern: str = "", *, new: bool = False) -> Stall:
        """Hold up the lines of these names; with `new` also those that are yet to come. `heal` ends it."""
        made = Stall(how, re.compile(pattern), None if new else frozenset(self.reaches(pattern)))
        self.stalls.add(made)
        return made

    def reaches(self, pattern: str) -> "list[_Line]":
        """The lines of these names."""
        return [line for line in list(self.lines) if re.search(pattern, line.name)]

    def heal(self, stall: Stall) -> None:
        """End it: what was held goes on."""
        self.stalls.discard(stall)

    def cut(self, how: str, pattern: str = "") -> int:
        """End these lines: `reset`, `close`, or `half-open`: the server's end is gone and the client hears nothing."""
        found = self.reaches(pattern)
        for line in found:
            self._loop.call_soon_threadsafe(line.cut, how)
        return len(found)

    def close(self) -> None:
        """End it, with every connection through it."""
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _cut_all(self) -> int:
        found = len(self._open) // 2
        for writer in list(self._open):
            _reset(writer)
        return found

    async def _end(self) -> None:
        self._listener.close()  # on its own loop: a connection that ends there at the same time wakes it too
        await self._cut_all()
        while self._tasks:  # one that was just accepted may still come
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0.05)  # their transports close in a later turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            there = await self._reach()
        except (OSError, asyncio.CancelledError):  # cancelled: by our own end
            _reset(writer)
            return
        line = _Line(self, (reader, writer), there)
        self._open |= {writer, there[1]}
        self.lines.add(line)
        try:
            with suppress(asyncio.CancelledError):  # by our own end; asyncio would log it
                await line.run()
        finally:
            self._open -= {writer, there[1]}
            self.lines.discard(line)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._server_port}")
        return await asyncio.open_connection(self._host, self._server_port)


class _Cut(Exception):
    """This line ends here."""


class _Line:
    """One connection."""

    def __init__(self, proxy: Proxy, client: Any, server: Any) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self.name = ""
        """The application_name of the client, when it has said it."""
        self._abandoned = False
        self._asked: deque[str] = deque()  # for each round that is under way, where its answer is cut
        self._way = "reset"

    async def run(self) -> None:
        halves = [asyncio.create_task(self._questions()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
            if self._way == "hole" or self._abandoned:
                await asyncio.sleep(self._proxy.hole)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            for end in (self._to_client, self._to_server):
                if self._way == "close":
                    with suppress(OSError, RuntimeError):
                        end.close()
                else:
                    _reset(end)

    def cut(self, how: str) -> None:
        """End it."""
        if how == "half-open":
            self._abandoned = True
            _reset(self._to_server)
        elif how == "close":
            self._way = "close"
            self._to_client.close()
        else:
            _reset(self._to_client)

    async def _questions(self) -> None:
        questions = Questions()
        while data := await self._from_client.read(65_536):
            greeting, rounds = questions.feed(data)
            if greeting:
                self.name = self.name or _application(greeting)
                await self._pass(self._to_server, greeting)
            for asked in rounds:
                await self._ask(asked)

    async def _ask(self, asked: Round) -> None:
        place = ""
        knife = self._proxy.knife
        if knife is not None and asked.executes:
            for function in sorted(asked.functions):
                if (chosen := knife(function)) is not None:
                    place, way = chosen
                    if place == RAISE:
                        asked.data, place = _raising(way), ""
                    else:
                        self._way = way
                    break
        if place == "before":
            raise _Cut
        self._asked.append(place)
        await self._pass(self._to_server, asked.data)
        if place == "race":
            raise _Cut

    async def _answers(self) -> None:
        answers = Answers()
        begun = False
        while data := await self._from_server.read(65_536):
            for answer in answers.feed(data):
                place = self._asked.popleft() if begun and self._asked else ""
                begun = True
                if place == "answer":
                    raise _Cut
                if place == "middle":
                    await self._pass(self._to_client, answer[: max(1, len(answer) // 2)])
                    raise _Cut
                await self._pass(self._to_client, answer)
            # Not before something is whole: half an answer must not escape a cut. Notifications come between answers.
            if (not begun or not self._asked) and (rest := answers.rest()):
                await self._pass(self._to_client, rest)

    async def _pass(self, to: asyncio.StreamWriter, data: bytes) -> None:
        answer = to is self._to_client
        while any(stall.strikes(self, answer=answer) for stall in self._proxy.stalls):  # noqa: ASYNC110 (another thread)
            await asyncio.sleep(0.02)
        slow = any(stall.how == "slow" and stall.meets(self) for stall in self._proxy.stalls)
        pace = SLOW if slow else self._proxy.pace
        if pace is not None:
            await asyncio.sleep(len(data) / pace)
        to.write(data)
        await to.drain()


def _raising(way: str) -> bytes:
    """A question that the server answers with an error of this SQLSTATE and these words, in a transaction or not."""
    state, _, words = way.partition(" ")
    query = f"do $$ begin raise exception using errcode = '{state}', message = '{state} on purpose {words}'; end $$"
    body = query.encode() + b"\0"
    return b"Q" + struct.pack("!I", len(body) + 4) + body


def _application(greeting: bytes) -> str:
    """The application_name in the message that starts a session."""
    parts = greeting[8:].split(b"\0")
    return dict(zip(parts[::2], parts[1::2], strict=False)).get(b"application_name", b"").decode("utf-8", "replace")


def _reset(writer: asyncio.StreamWriter) -> None:
    """End it with an RST: what is under way is thrown away."""
    with suppress(OSError, RuntimeError, AttributeError):
        line = writer.get_extra_info("socket")
        if line is not None and line.family != socket.AF_UNIX:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
