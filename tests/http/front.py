"""What stands between clients and API servers: passes connections on, loses answers, outlives servers."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count


class Front:
    """Listens on a port of its own; each connection goes to the next server that takes it."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self._ports = ports
        self._turn = count()
        self._losing = 0
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.lost = 0
        """Answers lost so far."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def lose_answers(self, number: int) -> None:
        """Cut the connection instead of passing on the next answers: the server has sent them, no client gets them."""
        with self._guard:
            self._losing = number

    def cut(self) -> None:
        """Cut every connection there is."""
        with self._guard:
            ends, self._open = self._open, set()
        for end in ends:
            _cut(end)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)

    def __enter__(self) -> "Front":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._reach()
            if server is None:
                _cut(client)
                continue
            with self._guard:
                self._open |= {client, server}
            self._start(self._carry, client, server, False)
            self._start(self._carry, server, client, True)

    def _reach(self) -> socket.socket | None:
        ports = list(self._ports())
        for _ in ports:
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", ports[next(self._turn) % len(ports)]), timeout=5)
        return None

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            source.settimeout(None)  # the other direction may have ended, and closed both, before this one began
            while data := source.recv(65536):
                if answers and self._loses():
                    return
                target.sendall(data)
        except OSError:
            pass
        finally:
            _cut(source, target)

    def _loses(self) -> bool:
        with self._guard:
            if not self._losing:
                return False
            self._losing -= 1
            self.lost += 1
            return True


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
