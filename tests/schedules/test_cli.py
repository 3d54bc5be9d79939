"""`leasehold schedules`: data on standard output, messages on standard error, an unknown key is named."""

import json
from datetime import datetime, timedelta
from typing import NamedTuple

import pytest

from leasehold.cli import main
from tests.cli.terminal import terminal


class Done(NamedTuple):
    """What a command said."""

    stdout: str
    stderr: str


@pytest.fixture
def cli(dsn, session, capsys):
    session.one(
        "schedule_put", key="daily", kind="REPORT", cron="0 6 * * *", time_zone="Europe/Berlin", payload={"a": 1}
    )
    session.one("schedule_put", key="often", kind="TICK", every="90 seconds")

    def run(*arguments: str, code: int = 0) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(["schedules", *arguments, "--dsn", dsn])
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return Done(out, err)

    return run


def test_list_shows_every_schedule(cli, session):
    lines = [line.split("\t") for line in cli("list").stdout.splitlines()]
    counts = "fired 0, missed 0, overlapped 0"
    assert lines == [
        ["daily", "0 6 * * * (Europe/Berlin)", "REPORT", "to be planned", counts],
        ["often", "every 0:01:30", "TICK", "to be planned", counts],
    ]
    daily, often = json.loads(cli("list", "--json").stdout)
    assert (daily["key"], daily["cron"], daily["payload"], daily["enabled"]) == ("daily", "0 6 * * *", {"a": 1}, True)
    assert (often["every"], often["nextRunAt"]) == (90.0, None)


def test_a_schedule_without_a_problem_is_listed_on_a_terminal_too(dsn, session):
    session.one("schedule_put", key="often", kind="TICK", every="90 seconds")
    with terminal("schedules", "list", LEASEHOLD_DSN=dsn) as screen:
        screen.expect("often")
        assert screen.end() == 0


def test_next_shows_when_they_run(cli, session):
    runs = json.loads(cli("next", "-n", "4", "--json").stdout)
    assert [run["key"] for run in runs].count("often") >= 3
    times = [datetime.fromisoformat(run["runAt"]) for run in runs]
    assert times == sorted(times)
    lines = cli("next", "often", "-n", "3").stdout.splitlines()
    first, second, third = (datetime.fromisoformat(line.split("\t")[0]) for line in lines)
    assert second - first == third - second == timedelta(seconds=90)
    session.one("schedule_put", key="bad", kind="k", cron="99 * * * *")
    done = cli("next", "-n", "1")
    assert "schedule 'bad' cannot be fired" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_run_enqueues_a_job_now(cli, session):
    job = cli("run", "daily").stdout.strip()
    assert session.job(job)["payload"] == {"a": 1}
    assert json.loads(cli("run", "daily", "--json").stdout).keys() == {"key", "jobId"}
    assert len({cli("run", "daily", "--idempotency-key", "x").stdout for _ in range(2)}) == 1


def test_disable_and_enable_switch_it(cli, session):
    assert json.loads(cli("disable", "daily", "--json").stdout) == {"key": "daily", "enabled": False, "changed": True}
    done = cli("disable", "daily")
    assert (done.stdout, done.stderr) == ("", "schedule 'daily' was disabled already\n")
    assert cli("list").stdout.splitlines()[0].split("\t")[3] == "disabled"
    assert "schedule 'daily' is enabled" in cli("enable", "daily", "--from-now").stderr
    assert session.value("select enabled from schedules where key = 'daily'")
    cli("remove", "daily")
    assert [row["key"] for row in json.loads(cli("list", "--json").stdout)] == ["often"]


@pytest.mark.parametrize("command", ["run", "enable", "disable", "remove", "next"])
def test_an_unknown_key_is_an_error_that_names_the_known_ones(cli, command):
    done = cli(command, "dayly", code=1)
    assert done.stdout == ""
    assert "error: schedule 'dayly' unknown\nhint: known: daily, often" in done.stderr
