"""Laws of the words: every reason that SQL has is explained to people, and nothing else is."""

import re
from importlib import resources

from leasehold.operate.reasons import REASONS


def test_each_reason_of_explain_has_words_and_no_words_are_left_over() -> None:
    text = resources.files("leasehold.db").joinpath("sql/functions/explain.sql").read_text()
    columns = re.findall(r"\bselect\s+('\w+'|case\b[^,]+\bend),", text)
    found = {name for column in columns for name in re.findall(r"(?:^|then |else )'(\w+)'", column)}
    assert found == set(REASONS)
