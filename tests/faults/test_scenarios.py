"""Every scenario of the fault suite at its smallest. `make faults` runs them with their full counts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from faults.__main__ import run
from faults.run import Skip
from faults.scenarios import MATRICES, SCENARIOS
from leasehold.db.connections import io

LONG = {"patroni": "it takes minutes: python -m faults patroni"}


def hold(name: str) -> tuple[int, list[str], str]:
    # Not below pytest's folder, which only its owner may enter; servers run as another user.
    # The watcher of a server that was just killed may write there once more.
    with TemporaryDirectory(prefix="leasehold-faults-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        try:
            verdict = run(name, seed=1, full=False, folder=Path(place))
        except Skip as reason:
            pytest.skip(str(reason))
    print(verdict.facts)
    return verdict.code, verdict.problems, verdict.text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - set(MATRICES)))
def test_the_history_of_the_scenario_keeps_every_law(name: str) -> None:
    if name in LONG:
        pytest.skip(LONG[name])
    code, problems, text = hold(name)
    assert (code, problems) == (0, []), "\n".join([text, *problems])


async def _trust(_connection: object) -> None:
    """Every answer is believed."""


@pytest.mark.timeout(300)
def test_the_scenario_of_a_cancelled_commit_catches_the_naive_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "_replicate", _trust)
    code, problems, _ = hold("unreplicated")
    assert code == 1
    assert any("no standby had" in problem for problem in problems)
