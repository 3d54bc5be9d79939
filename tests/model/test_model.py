"""Law: whatever is asked in whatever order, the database does what the model says."""

import os

import psycopg
import pytest

from tests.model.database import database_under_test
from tests.model.explore import explore

EXAMPLES = int(os.environ.get("LEASEHOLD_MODEL_EXAMPLES", "0"))
"""How many histories a long run tries, new ones each time; without it, the same ones in every run."""


ELSEWHERE = {
    "enqueue_batch",
    # of rows that raise: tests/sql/test_isolation.py
    "claim_each", "renew_each", "report_each", "submit_each", "accept_each",
    "accept_many", "cancel_many", "create_token", "drop_limit", "errors", "explain", "job_detail", "list_jobs", "pause",
    "queue_list", "resume", "retry_many", "revoke_token", "run_now", "set_limit", "stats", "statuses", "submit_many",
    "token", "token_list", "tokens_exist", "worker_list", "doctor", "names", "declare_tasks", "complete_in",
    "events", "history", "history_enabled", "prune", "prune_workers", "verify",
    # of pictures and canaries: tests/sql
    "statistics_add", "statistics", "flow", "rates", "system", "holders", "canary_start", "canary_stop",
    "canary_list",
    # of schedules: tests/schedules
    "schedule_claim", "schedule_disable", "schedule_due", "schedule_enable", "schedule_fire", "schedule_list",
    "schedule_problem", "schedule_put", "schedule_remove", "schedule_run_now", "schedule_sync",
}  # fmt: skip
"""What the model leaves out: these have laws and tests of their own."""


@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_every_history_of_calls_ends_as_the_model_says(dsn: str, record_property) -> None:
    with database_under_test(dsn) as database:
        explore(database, new_histories=EXAMPLES)
        record_property("calls_compared", database.calls)
        print(f"{database.calls} calls compared: {dict(database.called)}")
        assert database.calls >= (5_000 if not EXAMPLES else 35 * EXAMPLES)
        versions = "select proname from pg_proc where pronamespace = 'leasehold'::regnamespace and proname ~ '_v1$'"
        everything = {name.removesuffix("_v1") for (name,) in database.connection.execute(versions)}
        assert sorted(everything - ELSEWHERE - database.called.keys()) == [], "give each new function its rule"


def test_a_job_whose_key_is_free_does_not_wait_for_a_sibling_that_no_worker_asks_for(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:

        def ask(query: str, *args: object) -> list[tuple[object, ...]]:
            return connection.execute(query, args).fetchall()

        ((first,),) = ask("select leasehold.enqueue('a', exclusive_key => 'k')")
        assert ask("select id from leasehold.claim('w1')") == [(first,)]
        ((mine,),) = ask("select leasehold.enqueue('a', exclusive_key => 'k')")
        ask("select leasehold.enqueue('b', exclusive_key => 'k', priority => 1)")
        assert ask("select id from leasehold.claim('w2')") == []
        ask("select leasehold.complete('w1', array[%s]::uuid[], '{1}')", first)
        assert ask("select id from leasehold.claim('w2', kinds => '{a}')") == [(mine,)]
