"""Two sessions meet at every statement boundary, and what comes of it is what one after the other would have given."""

import pytest

from tests.interleavings.calls import CALLS
from tests.interleavings.explore import explore
from tests.timing import FULL

TIME = "time passes"
# A claim reads the clock anew after each wait, so that its lease is full: what it swept is older than what it took.
READ_ONCE = ("heartbeat", "complete", "fail", "release", "sweep", "cancel", "retry")
LONG = ("take over", "promote", "claim of w")
FIRST = [call for call in CALLS if call != TIME and (FULL or call not in LONG)]
SECOND = [call for call in CALLS if call != TIME and (FULL or call not in LONG[1:])]
PAIRS = [*((first, second) for first in FIRST for second in SECOND), *((first, TIME) for first in READ_ONCE)]


@pytest.mark.timeout(900 if FULL else 120)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_any_interleaving_equals_some_serial_order(driver, first, second):
    before, allowed = driver.interleavings, driver.allowed.copy()
    findings = [str(finding) for finding in explore(driver, first, second)]
    print(f"{first} with {second}: {driver.interleavings - before} interleavings")
    for reason, count in (driver.allowed - allowed).items():
        print(f"{count} allowed: {reason}")
    assert findings == [], "\n".join(findings[:5])
