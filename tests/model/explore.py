"""How histories are chosen: the same ones in every run, or as many new ones as a long run asks for."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.database import Database
from tests.model.people import Calls


def explore(database: Database, *, new_histories: int = 0) -> None:
    """Compare database and model along many histories; raise Divergence at the first difference."""
    profile = settings(
        max_examples=new_histories or 120,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=not new_histories,
        print_blob=True,
        report_multiple_bugs=False,
        # To shrink a failing history takes minutes; a long run has them.
        phases=[Phase.generate, Phase.shrink] if new_histories else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: Calls(database), settings=profile)
