"""Logins with one of Leasehold's roles each, and one with none."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import Admin

ROLES = ("producer", "worker", "operator", "viewer", "api", "nobody")

Login = Callable[[str], AbstractContextManager[psycopg.Connection]]


@pytest.fixture(scope="session")
def names(admin: Admin, migrated: str) -> Iterator[dict[str, str]]:
    """The login for each role. Roles belong to the whole cluster, which other test processes share."""
    run = uuid.uuid4().hex[:12]
    logins = {role: f"test_{run}_{role}" for role in ROLES}
    for role, name in logins.items():
        login = sql.Identifier(name)
        admin.connection.execute(sql.SQL("create role {} login password {}").format(login, sql.Literal(run)))
        if role != "nobody":
            group = sql.Identifier(f"leasehold_{role}")
            admin.connection.execute(sql.SQL("grant {} to {}").format(group, login))
    yield logins
    for name in logins.values():
        admin.connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def login(dsn: str, names: dict[str, str]) -> Login:
    """Log in to the test's database with a role."""

    @contextmanager
    def connect(role: str) -> Iterator[psycopg.Connection]:
        password = names[role].split("_")[1]
        with psycopg.connect(make_conninfo(dsn, user=names[role], password=password), autocommit=True) as connection:
            yield connection

    return connect


@pytest.fixture
def owner(dsn: str) -> Iterator[psycopg.Connection]:
    """The superuser that the schema belongs to."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection
