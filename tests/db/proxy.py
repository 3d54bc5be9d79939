"""Something between a program and PostgreSQL that can lose answers, or be away."""

import socket
import threading
from contextlib import suppress
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

PASSWORD = "hunter2-sEcReT"
"""In every DSN that leads through a proxy, for tests that look for it where it must not be."""

_READY = b"Z\x00\x00\x00\x05I"
"""ReadyForQuery, no transaction: whatever was asked is done and committed."""


class Proxy:
    """Listens on a port of its own and forwards to the server of `dsn`."""

    def __init__(self, dsn: str) -> None:
        self._target = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        self._guard = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._flowing: list[threading.Event] = []
        self._losing = 0
        self._what = b""
        self._freezing = b""
        self.lost = 0
        """Answers lost so far."""
        self.connections = 0
        """Connections accepted so far."""
        self.carried = 0
        """Connections that are open on both sides."""
        self._listener = self._listen(0)
        self._port = self._listener.getsockname()[1]
        user = quote(self._target["user"])
        self.dsn = f"postgresql://{user}:{PASSWORD}@127.0.0.1:{self._port}/{self._target['dbname']}?sslmode=disable"

    def lose_answers(self, count: int = 1, to: str = "enqueue") -> None:
        """Cut the connection instead of passing on the answer to a statement with this word in it, `count` times."""
        self._what = to.encode()
        self._losing = count

    def go_away(self) -> None:
        """Refuse new connections and cut those there are."""
        self.refuse_new()
        with self._guard:
            cut, self._open = self._open, []
        for end in cut:
            _cut(end)

    def freeze(self) -> None:
        """From now on nothing passes through the connections that there are, in either direction; they stay open."""
        with self._guard:
            for flowing in self._flowing:
                flowing.clear()

    def freeze_at(self, what: str) -> None:
        """Freeze a connection when it carries a statement with this word in it: the statement does not arrive."""
        self._freezing = what.encode()

    def refuse_new(self) -> None:
        """Accept no more connections; those there are stay."""
        _cut(self._listener)  # closing alone does not wake a thread that waits in accept()

    def thaw(self) -> None:
        """What has been held up passes."""
        with self._guard:
            for flowing in self._flowing:
                flowing.set()

    def come_back(self) -> None:
        self._listener = self._listen(self._port)

    def close(self) -> None:
        self.thaw()
        self.go_away()
        for thread in self._threads:
            thread.join(60)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        self._start(self._accept, listener)
        return listener

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            server = self._reach_server()
            with self._guard:
                self._open += [client, server]
                self.carried += 1
                flowing = threading.Event()
                flowing.set()
                self._flowing.append(flowing)
            asked = threading.Event()
            self._start(self._carry_questions, client, server, asked, flowing)
            self._start(self._carry_answers, server, client, asked, flowing)

    def _reach_server(self) -> socket.socket:
        host, port = self._target["host"], int(self._target["port"])
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _carry_questions(
        self, client: socket.socket, server: socket.socket, asked: threading.Event, flowing: threading.Event
    ) -> None:
        try:
            while data := client.recv(65536):
                if self._freezing and self._freezing in data:
                    flowing.clear()
                flowing.wait()
                with self._guard:
                    if self._losing and self._what in data:
                        self._losing -= 1
                        asked.set()
                server.sendall(data)
        except OSError:
            pass
        finally:
            _cut(client, server)

    def _carry_answers(
        self, server: socket.socket, client: socket.socket, asked: threading.Event, flowing: threading.Event
    ) -> None:
        try:
            while data := server.recv(65536):
                flowing.wait()
                if asked.is_set():
                    self.lost += 1  # now: on a busy machine the client may give up before the rest is there
                    while not data.endswith(_READY):
                        data += server.recv(65536)
                    return
                client.sendall(data)
        except OSError:
            pass
        finally:
            _cut(client, server)
            with self._guard:
                self.carried -= 1


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
