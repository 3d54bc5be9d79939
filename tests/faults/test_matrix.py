"""The matrices of the fault suite as samples in which each row and each column occurs. `make faults` runs all cells."""

import pytest

from tests.faults.test_scenarios import hold

PASSING = ("frozen", "poison", "sleeping")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PASSING)
def test_no_cell_of_the_sample_fails(name: str) -> None:
    code, problems, text = hold(name)
    assert (code, problems) == (0, []), text
