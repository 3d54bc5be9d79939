"""What went wrong in a migration, in words that name the cause and the cure."""

from psycopg import Connection, Error, errors, sql

from leasehold.db.steps import Step, lock_key
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

# The blocker is gone from `pg_blocking_pids` once our statement gave up; who has held a lock on
# the schema's tables for longest is the one we waited for.
_TABLE_BLOCKER = """
select a.pid, a.application_name, a.query, a.state, extract(epoch from clock_timestamp() - a.xact_start)::integer
  from pg_catalog.pg_locks l
  join pg_catalog.pg_class c on c.oid = l.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.granted and n.nspname = %s
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
   and l.pid <> pg_catalog.pg_backend_pid()
 order by a.xact_start
 limit 1
"""

_MIGRATION_BLOCKER = sql.SQL("""
select a.pid, a.application_name, a.query, a.state, extract(epoch from clock_timestamp() - a.xact_start)::integer
  from pg_catalog.pg_locks l
  join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory' and l.granted
   and ((l.classid::bigint << 32) | l.objid::bigint) = {key}
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
 limit 1
""")

FITNESS = "select pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_encoding')"
"""What `unfit` wants to know."""

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


def worth_repeating(error: Error) -> bool:
    """Whether the same transaction may succeed the next time.

    Besides locks: roles belong to the whole server, out of reach of a lock in one database, so two
    databases that are migrated at once may both try to create one.
    """
    if isinstance(error, errors.UniqueViolation):
        return error.diag.schema_name == "pg_catalog"
    return isinstance(
        error,
        # XX000, among others "tuple concurrently updated": two grants of one role at once. By code: messages are
        # translated.
        errors.InternalError_
        | errors.LockNotAvailable
        | errors.DeadlockDetected
        | errors.SerializationFailure
        | errors.DuplicateObject,
    )


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
        return _blocked(connection, step, schema)
    return LeaseholdError(
        f"{step.title} failed{_line(step, error)}: {_message(error)}",
        hint=error.diag.message_hint or "nothing was changed",
    )


def waited_in_vain(connection: Connection, *, schema: str, seconds: float) -> LeaseholdError:
    """Return the error for a migration that never got its turn."""
    row = connection.execute(_MIGRATION_BLOCKER.format(key=lock_key(schema))).fetchone()
    return LeaseholdError(
        f"another migration of schema {schema!r} has not ended within {seconds:g} s{_holder(row)}",
        hint="wait for it, or end it with `select pg_terminate_backend(pid)`, then run this again",
    )


def _blocked(connection: Connection, step: Step, schema: str) -> LeaseholdError:
    row = connection.execute(_TABLE_BLOCKER, (schema,)).fetchone()
    return LeaseholdError(
        f"{step.title} could not get its locks{_holder(row)}; nothing was changed",
        hint="end the transaction that holds them, then run `leasehold migrate` again",
    )


def _holder(row: tuple[int, str, str, str | None, int | None] | None) -> str:
    if row is None:
        return ""
    pid, application, query, state, seconds = row
    shown = " ".join((query or "").split())[:200]
    since = "" if seconds is None else f", {state}, its transaction is {seconds} s old"
    return f": held by pid {pid} ({application or 'no application name'}{since}): {shown}"


def _not_permitted(connection: Connection, step: Step, error: Error, schema: str) -> NotPermitted:
    row = connection.execute(_LACKING, (schema,)).fetchone()
    message = f"{step.title}: {_message(error)}"
    if row is None:
        return NotPermitted(message, hint=f"connect as a role that may, {_CURE}")
    role, database, may_create_schema, may_create_role, owner, owns = row
    if owner is None and not may_create_schema:
        return NotPermitted(
            f"role {role!r} lacks CREATE on database {database!r}: {message}",
            hint=f"grant create on database to that role, {_CURE}",
        )
    if not owns:
        return NotPermitted(
            f"role {role!r} is not the owner of schema {schema!r}: {message}",
            hint=f"connect as {owner!r}, who owns it, or as a member of that role",
        )
    if not may_create_role:
        return NotPermitted(f"role {role!r} lacks CREATEROLE: {message}", hint=f"{_ROLES_CURE}, {_CURE}")
    return NotPermitted(f"role {role!r}: {message}", hint=f"connect as a role that may, {_CURE}")


def _message(error: Error) -> str:
    message = error.diag.message_primary or str(error).strip()
    # Names the function, where the statement alone does not tell.
    context = (error.diag.context or "").partition("\n")[0]
    return f"{message} ({context})" if context else message


def _line(step: Step, error: Error) -> str:
    position = error.diag.statement_position
    if position is None:
        return ""
    # Positions count characters from 1.
    return f" in line {step.text.count(chr(10), 0, int(position) - 1) + 1}"
