"""`leasehold top`: live in a terminal, one look elsewhere, and never more than fits."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from uuid import uuid4

import pytest
from rich.console import Console
from rich.text import Text

from leasehold.cli.top import Snapshot, picture
from leasehold.db.store import ErrorGroup, JobRow, Rate, WorkerRow
from tests.cli.terminal import terminal

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_in_a_terminal_it_is_live_and_q_ends_it(dsn, sql):
    sql("select start_worker('host1:42:abcd', 'host1', 42, null, '{SEND}', '{30}', 8)")
    sql.enqueue("SEND", "mail")
    assert sql.claim("host1:42:abcd")
    sql.dead("REPORT", "reports", error_class="MailServerBusy")
    with terminal("top", "--every", "0.2s", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("leasehold top")
        for words in ("mail", "host1:42:abcd", "1/8", "SEND 1", "MailServerBusy", "it broke"):
            screen.expect(words)
        seen = len(screen.text)
        sql.enqueue("SEND", "brand-new")
        screen.expect("brand-new", after=seen)
        screen.press("q")
        assert screen.end() == 0
        assert screen.raw.rindex("\x1b[?1049l") > screen.raw.rindex("\x1b[?1049h"), "the screen is given back"


def test_ctrl_c_ends_it_with_130_and_restores_the_terminal(dsn):
    with terminal("top", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("leasehold top")
        screen.interrupt()
        assert screen.end() == 130
        assert "\x1b[?1049l" in screen.raw
        assert "Traceback" not in screen.text


def test_between_pipes_it_is_one_look(cli, sql):
    sql.enqueue("SEND", "mail")
    done = cli("top")
    assert "mail" in done.out
    assert "\x1b" not in done.out
    found = cli("top", "--json").json
    (queue,) = found["queues"]
    assert (queue["queue"], queue["ready"], queue["outlook"], queue["inRate"] > 0) == ("mail", 1, "unserved", True)
    assert found["figures"]["queued"] == {"value": 1, "capped": False}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (80, 12)])
@pytest.mark.parametrize("many", [0, 3, 60])
def test_the_picture_fits_the_terminal_whatever_there_is(width, height, many):
    queues = [Rate(f"queue {n}\x1b[31m", n, False, n, n * 10.0, 1.0, 2.0, n % 2 == 0, True, n, []) for n in range(many)]
    workers = [
        WorkerRow(f"host:{n}:worker", "host", n, None, None, 10, n % 11, n % 3 > 0, NOW, NOW, None) for n in range(many)
    ]
    errors = [
        ErrorGroup(f"KIND{n}", "Error" * 9, n, n, NOW, NOW - timedelta(hours=n), "why " * 99, uuid4())
        for n in range(many)
    ]
    jobs = [_running(f"host:{n % 7}:worker", n) for n in range(many)]
    seen = Snapshot(now=NOW, figures={}, queues=queues, workers=workers, running=jobs, errors=errors)
    out = StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(picture(seen, height=height, header=[Text("title")]))
    lines = out.getvalue().splitlines()
    assert len(lines) <= max(height, 16)
    assert max(map(len, lines)) <= width
    assert "\x1b[31m" not in out.getvalue()
    if many:
        assert "expired" in out.getvalue(), "a lease that has run out is shown in words"


def _running(worker: str, number: int) -> JobRow:
    return JobRow(
        uuid4(), "SEND", "mail", "running", "RUNNING", 0, 1, 0, 5, None, None, False, True, None, None, None, None,
        worker, NOW + timedelta(seconds=number - 1), NOW, NOW, NOW, NOW, None, None,
    )  # fmt: skip
