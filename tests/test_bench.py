"""The benchmark suite itself: that it measures what it says, and that it never makes a figure up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from bench import __main__ as command
from bench import picture, publish
from bench.contestants import PEERS
from bench.lines import Line, at_least, at_most, not_run, printed, ratios
from bench.server import SETTINGS
from bench.suite import REGISTRY
from faults.waiting import until

ROOT = Path(__file__).parents[1]
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is read from /proc")


def leasehold_bench(dsn, *arguments, **options):
    command = [sys.executable, "-m", "leasehold", "bench", "--dsn", dsn, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, **options)


def schemas(dsn):
    with psycopg.connect(dsn) as connection:
        return {
            row[0] for row in connection.execute("select nspname from pg_namespace where nspname like 'leasehold%'")
        }


def test_a_line_passes_by_the_median_of_its_repeats():
    assert at_least(0.6, [0.1, 0.7, 0.9], "%", what="x").verdict == "PASS"
    assert at_least(0.6, [0.1, 0.5, 0.9], "%", what="x").verdict == "below"
    assert at_most(20, [1, 30, 40], "ms", what="x").verdict == "below"


def test_what_could_not_be_run_is_never_a_success():
    assert not_run("no pgbench", what="x", target="≥ 60 %").verdict == "not run"
    assert at_least(0.6, [], "%", what="x").verdict == "below"
    assert "no pgbench" in printed([not_run("no pgbench", what="x")])


def test_a_ratio_is_that_of_the_same_repeat():
    assert ratios([10, 40], [10, 20]) == [1, 2]
    assert ratios([10, 40, 50], [10, 20]) == [1, 2]


def test_every_case_says_in_one_line_what_it_shows():
    assert len(REGISTRY) >= 20
    for case in REGISTRY.values():
        assert case.doc.endswith("."), case.name


def test_a_case_that_does_not_exist_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        command.arguments(["--only", "drian"])
    assert "no case drian; there are: " in capsys.readouterr().err


def test_a_peer_that_is_not_installed_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr("bench.peers.install.HOME", tmp_path)
    monkeypatch.setattr("bench.peers.install.MODULES", tmp_path)
    assert {peer.missing for peer in PEERS} == {"not installed (make bench-peers)"}


@linux
def test_one_command_measures_a_drain_and_says_with_which_settings(tmp_path):
    where = tmp_path / "figures.json"
    assert (SETTINGS["fsync"], SETTINGS["synchronous_commit"]) == (True, True), (
        "what is measured unless it is asked for"
    )
    arguments = ["--size", "small", "--repeats", "1", "--no-peers", "--setting", "fsync=off"]
    arguments += ["--only", "drain", "--json", str(where)]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(where.read_text())
    lines = {(line["what"], line["against"]): line for line in found["lines"]}
    assert ("drain, one worker process", "") in lines, done.stderr
    assert lines["drain, one worker process", ""]["median"] > 0
    assert lines["cost of a job in a drain", "round trips"]["median"] < 1, "jobs are claimed and reported in batches"
    assert lines["drain, one worker process", "graphile-worker"]["verdict"] == "not run"
    assert "fsync off, synchronous_commit on" in done.stdout
    assert "SMALL SIZES" in done.stdout


def test_publishing_replaces_what_is_between_the_marks_and_nothing_else(tmp_path, monkeypatch):
    page = tmp_path / "performance.md"
    page.write_text(
        f"before\n{publish.LEADING_BEGIN}\nold\n{publish.LEADING_END}\nbetween\n{publish.BEGIN}\nold\n{publish.END}\nafter\n"
    )
    monkeypatch.setattr(publish, "PAGE", page)
    monkeypatch.setattr(publish, "PICTURE", tmp_path / "performance.svg")
    line = at_least(0.6, [0.7, 0.8], "%", what="drain", against="the limit")
    settings = {"server_version": "18", "fsync": "on", "synchronous_commit": "on", "shared_buffers": "128MB"}
    machine = {"settings": settings, "python": "3", "cores": 2, "size": "full", "repeats": 2, "at": "now", "minutes": 1}
    measurements = [
        {"case": "drain", "who": "a <b>", "rate": 5.0},
        {"case": "drain", "who": "leasehold x 1", "rate": 9.0},
    ]
    publish.publish({"machine": machine, "lines": [line.as_json()], "measurements": measurements})
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| drain | the limit | ≥ 60 % | 75 % | 70 % to 80 % | PASS |" in text
    drawn = (tmp_path / "performance.svg").read_text()
    assert "a &lt;b&gt;" in drawn
    assert "prefers-color-scheme: dark" in drawn


def test_the_page_has_the_marks_and_begins_with_figures_that_exist():
    text = publish.PAGE.read_text()
    marks = [publish.LEADING_BEGIN, publish.LEADING_END, publish.BEGIN, publish.END]
    assert sorted(marks, key=text.index) == marks
    _, _, figures = text.partition(publish.BEGIN)
    assert [key for key in publish.LEADING if f"| {key[0]} | {key[1]} |" not in figures] == []


def test_a_picture_without_figures_says_so():
    assert "No run has been published yet." in picture.draw({"measurements": []})


def test_the_json_of_a_line_makes_the_same_line_again():
    line = at_most(20, [1.0, 2.0], "ms", what="latency", against="p99")
    assert command.as_line(json.loads(json.dumps(line.as_json()))) == line
    assert isinstance(line, Line)


def test_leasehold_bench_measures_and_leaves_nothing_behind(empty_dsn):
    done = leasehold_bench(empty_dsn, "--jobs", "500", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {"singlePerSecond", "bulkPerSecond", "drainPerSecond", "latencyP50Ms", "latencyP99Ms", "jobs"} == set(
        figures
    )
    assert figures["drainPerSecond"] > 0
    assert schemas(empty_dsn) == set()


def test_leasehold_bench_touches_no_schema_that_it_did_not_make(empty_dsn):
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("create schema leasehold_bench")
        connection.execute("create table leasehold_bench.precious ()")
        done = leasehold_bench(empty_dsn)
        assert done.returncode == 2
        assert "is there already, and no benchmark made it" in done.stderr
        assert "Traceback" not in done.stderr
        connection.execute("select from leasehold_bench.precious")


def test_leasehold_bench_drops_its_schema_when_it_is_interrupted_and_when_its_forerunner_was_killed(empty_dsn):
    command = [sys.executable, "-m", "leasehold", "bench", "--dsn", empty_dsn, "--jobs", "1000000", "--seconds", "60"]
    for number in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert process.stderr is not None
        assert "recording jobs" in process.stderr.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        if number == signal.SIGKILL:
            assert schemas(empty_dsn) == {"leasehold_bench"}
            _until_nobody_is_connected(empty_dsn)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert schemas(empty_dsn) == set()


def _until_nobody_is_connected(dsn):
    query = """select count(*) from pg_stat_activity
        where datname = current_database() and application_name like 'leasehold%'"""
    with psycopg.connect(dsn, autocommit=True) as connection:
        until(lambda: connection.execute(query).fetchone() == (0,), "the connections of a dead process are closed")


def test_leasehold_bench_says_where_there_is_no_server():
    done = leasehold_bench("postgresql://127.0.0.1:1/nowhere")
    assert done.returncode == 3
    assert "cannot connect" in done.stderr
    assert "Traceback" not in done.stderr
