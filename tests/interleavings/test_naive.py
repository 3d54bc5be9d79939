"""The driver finds what is wrong with naive functions; each of them passes when the sessions take turns."""

import pytest

from tests.interleavings.conftest import prepared
from tests.interleavings.explore import explore
from tests.interleavings.naive import NAIVE
from tests.interleavings.starts import STARTS


@pytest.mark.parametrize("name", NAIVE)
def test_the_interleavings_catch_the_naive_version(dsn, name):
    naive = NAIVE[name]
    starts = {naive.start: STARTS[naive.start]}
    for driver in prepared(dsn, naive.change):
        findings = list(explore(driver, naive.first, naive.second, starts=starts))
        assert findings != []
        assert len(findings) < driver.interleavings, "it fails without any interleaving"
