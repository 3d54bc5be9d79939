"""The fixtures that the other tests stand on."""

import psycopg


def test_an_empty_database_of_its_own(empty_dsn, admin):
    with psycopg.connect(empty_dsn) as connection:
        assert connection.execute("select count(*) from pg_class where oid >= 16384").fetchone() == (0,)
        with admin.database() as other:
            assert other != connection.info.dbname


def test_a_database_is_dropped_although_in_use(admin):
    with admin.database() as name:
        connection = psycopg.connect(admin.server.dsn(name))
    connection.close()
    exists = "select exists (select from pg_database where datname = %s)"
    assert admin.connection.execute(exists, [name]).fetchone() == (False,)
