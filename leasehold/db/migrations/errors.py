"""What went wrong in a migration, in words that name the cause and the cure."""

from psycopg import Connection, Error, errors, sql

from leasehold.db.migrations.plan import Step, lock_key
from leasehold.errors import ConfigError, DatabaseUnavailable, LeaseholdError, NotPermitted

_LACKING = """
select current_user,
       current_database(),
       pg_catalog.has_database_privilege(current_database(), 'CREATE'),
       (select r.rolcreaterole or r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user),
       pg_catalog.pg_get_userbyid(n.nspowner),
       coalesce(pg_catalog.pg_has_role(n.nspowner, 'USAGE'), true)
  from (select) as one
  left join pg_catalog.pg_namespace n on n.nspname = %s
"""

# `pg_blocking_pids` no longer shows the blocker when our statement has given up: of the sessions with a lock of this
# kind, the one whose transaction is the oldest is the one that we waited for.
_HOLDER = sql.SQL("""
select a.pid, a.application_name, a.query, a.state, extract(epoch from clock_timestamp() - a.xact_start)::integer
  from pg_catalog.pg_locks l
  join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.granted and l.pid <> pg_catalog.pg_backend_pid() and {what}
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
 order by a.xact_start
 limit 1
""")
_TABLE_LOCK = sql.SQL(
    "l.locktype = 'relation' and l.relation in (select c.oid from pg_catalog.pg_class c"
    " join pg_catalog.pg_namespace n on n.oid = c.relnamespace where n.nspname = {})"
)
_MIGRATION_LOCK = sql.SQL("l.locktype = 'advisory' and ((l.classid::bigint << 32) | l.objid::bigint) = {}")

FITNESS = "select pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_encoding')"
"""What `unfit` needs to know."""

_CURE = "or let a superuser run the output of `leasehold migrate --sql` once"

ROLES = ("leasehold_producer", "leasehold_worker", "leasehold_operator", "leasehold_viewer", "leasehold_api")
"""What a migration creates where they are missing; created beforehand, it needs no right to."""

_ROLES_CURE = f"let an administrator create the roles beforehand ({', '.join(ROLES)}; all nologin)"


def unfit(standby: bool, encoding: str) -> LeaseholdError | None:
    """Return the error for a server or database on which no migration can work, or None."""
    if standby:
        return ConfigError(
            "this server is a standby and takes no writes; nothing was changed",
            hint="name the primary in the DSN, or several hosts with target_session_attrs=read-write",
        )
    if encoding != "UTF8":
        return ConfigError(
            f"the database has the encoding {encoding}, and Leasehold needs UTF8: jobs hold any text; "
            "nothing was changed",
            hint="create database ... encoding 'UTF8' template template0, and use that one",
        )
    return None


# InternalError_ is XX000, among others "tuple concurrently updated": two grants of one role at once.
_PASSING = (
    errors.InternalError_, errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure,
    errors.DuplicateObject,
)  # fmt: skip


def worth_repeating(error: Error) -> bool:
    """Return whether the same transaction may succeed the next time."""
    # Roles belong to the whole server, out of reach of a lock in one database: two migrations may both create one.
    if isinstance(error, errors.UniqueViolation):
        return error.diag.schema_name == "pg_catalog"
    return isinstance(error, _PASSING)


def explain(connection: Connection, step: Step, error: Error, *, schema: str) -> LeaseholdError:
    """Turn the error of one step into one that says what to do; may ask the server why."""
    if "statement pooling mode" in str(error):
        return ConfigError(
            "PgBouncer is in statement mode, which lets no transaction through",
            hint="set pool_mode = transaction or session for this database",
        )
    if connection.closed:
        return DatabaseUnavailable(
            f"the connection to PostgreSQL broke during {step.title}",
            hint="do it again: it happens as a whole or not at all. If it breaks again, a timeout of the role is short"
            " (idle_in_transaction_session_timeout, transaction_timeout): `leasehold doctor` names those",
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return _not_permitted(connection, step, error, schema)
    if isinstance(error, errors.LockNotAvailable):
        return LeaseholdError(
            f"{step.title} could not get its locks{_holder(connection, _TABLE_LOCK.format(sql.Literal(schema)))};"
            " nothing was changed",
            hint="end the transaction that holds them, then run `leasehold migrate` again",
        )
    position = error.diag.statement_position  # in characters, from 1
    line = "" if position is None else f" in line {step.text.count(chr(10), 0, int(position) - 1) + 1}"
    message = f"{step.title} failed{line}: {_message(error)}"
    return LeaseholdError(message, hint=error.diag.message_hint or "nothing was changed")


def turn_never_came(connection: Connection, *, schema: str, seconds: float) -> LeaseholdError:
    """Return the error for a migration that never got its turn."""
    holder = _holder(connection, _MIGRATION_LOCK.format(lock_key(schema)))
    return LeaseholdError(
        f"another migration of schema {schema!r} has not ended within {seconds:g} s{holder}",
        hint="wait for it, or end it with `select pg_terminate_backend(pid)`, then run this again",
    )


def _holder(connection: Connection, what: sql.Composed) -> str:
    row = connection.execute(_HOLDER.format(what=what)).fetchone()
    if row is None:
        return ""
    pid, application, query, state, seconds = row
    shown = " ".join((query or "").split())[:200]
    since = "" if seconds is None else f", {state}, its transaction is {seconds} s old"
    return f": held by pid {pid} ({application or 'no application name'}{since}): {shown}"


def _not_permitted(connection: Connection, step: Step, error: Error, schema: str) -> NotPermitted:
    row = connection.execute(_LACKING, (schema,)).fetchone()
    role, database, may_create_schema, may_create_role, owner, owns = row or ("", "", True, True, None, True)
    lack, cure = "", f"connect as a role that may, {_CURE}"
    if owner is None and not may_create_schema:
        lack, cure = f" lacks CREATE on database {database!r}", f"grant create on database to that role, {_CURE}"
    elif not owns:
        lack = f" is not the owner of schema {schema!r}"
        cure = f"connect as {owner!r}, who owns it, or as a member of that role"
    elif not may_create_role:
        lack, cure = " lacks CREATEROLE", f"{_ROLES_CURE}, {_CURE}"
    return NotPermitted(f"role {role!r}{lack}: {step.title}: {_message(error)}", hint=cure)


def _message(error: Error) -> str:
    message = error.diag.message_primary or str(error).strip()
    # Names the function, where the statement alone does not.
    context = (error.diag.context or "").partition("\n")[0]
    return f"{message} ({context})" if context else message
