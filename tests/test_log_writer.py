"""Log lines that are written in the background: in order, counted when they are dropped, and after a fork, too."""

import contextlib
import logging
import os
import subprocess
import sys
import textwrap

from faults.waiting import until
from leasehold._log_writer import LogWriter


def test_lines_beyond_the_bound_are_dropped_and_counted_once_and_the_rest_is_in_order() -> None:
    reader, end = os.pipe()
    writer = LogWriter(end, "utf-8")
    for number in range(12_000):
        writer.emit(logging.makeLogRecord({"msg": "%d " + "x" * 100, "args": (number,)}))
    writer.flush(0.01)  # bounded, though the pipe is full
    os.set_blocking(reader, False)
    said = b""

    def complete() -> bool:
        nonlocal said
        with contextlib.suppress(BlockingIOError):
            while True:
                said += os.read(reader, 1 << 16)
        return b"were dropped" in said

    until(complete)
    writer.say("after")
    writer.flush()
    until(lambda: complete() and said.endswith(b"after\n"))
    *lines, note, after = said.decode().splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert 10_000 <= len(lines) < 12_000
    assert note == f"{12_000 - len(lines)} log lines were dropped: standard error was not read in time"
    assert after == "after"


def run(code: str) -> "subprocess.CompletedProcess[str]":
    # A fork of a process with threads warns from Python 3.12 on.
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        "import logging, os\nfrom leasehold import logs\n" + textwrap.dedent(code),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_copy_of_the_process_writes_its_own_lines_and_none_twice() -> None:
    ended = run("""
        logs.configure(background=True)
        for turn in range(200):
            logging.info("before %d", turn)
            if (copy := os.fork()) == 0:
                logging.info("copy %d", turn)
                logging.shutdown()
                os._exit(0)
            os.waitpid(copy, 0)
            logging.info("after %d", turn)
    """)
    assert ended.returncode == 0
    said = [line.split(": ")[1] for line in ended.stderr.splitlines()]
    for word in ("before", "copy", "after"):
        assert [line for line in said if line.startswith(word)] == [f"{word} {turn}" for turn in range(200)]


def test_the_last_lines_are_written_at_the_end_and_a_bad_call_is_reported() -> None:
    ended = run("""
        logs.configure(background=True)
        logging.info("%d", "no number")
        for turn in range(2000):
            logging.info("line %d \\udcff", turn)
    """)
    assert ended.returncode == 0
    assert "TypeError: %d format" in ended.stderr
    assert "Message: '%d'" in ended.stderr
    assert [line.split(": ")[1] for line in ended.stderr.splitlines()[-2000:]] == [
        f"line {turn} \\udcff" for turn in range(2000)
    ]
