"""Laws of the JSON limits: what jsonb refuses is found, what it takes is left alone, quickly."""

import json
import time
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold._facts import MAX_PAYLOAD_BYTES
from leasehold._jsonlimits import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NODES,
    JsonProblem,
    _walk,
    find_hazard,
    find_problem,
)
from leasehold.arguments import is_harmless, is_small

clean_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | clean_text
values = st.recursive(scalars, lambda v: st.lists(v, max_size=5) | st.dictionaries(clean_text, v, max_size=5))


def problem(text: str) -> JsonProblem:
    found = find_problem(text)
    assert found is not None
    return found


@given(values, st.booleans())
def test_ordinary_json_has_no_problem(value: object, ascii_only: bool) -> None:
    assert find_problem(json.dumps(value, ensure_ascii=ascii_only)) is None


numbers = st.builds(
    "[{}{}{}{}]".format,
    st.sampled_from(["", "-"]),
    st.sampled_from(["0", "9", "9" * 209, "9" * 210, "9" * 310, "9" * 1001]),
    st.sampled_from(["", ".0", "." + "9" * 300]),
    st.sampled_from(["", "e9", "E+99", "e-99", "e100", "e308", "e400", "e401", "e-401"]),
)
fragments = st.sampled_from(
    ["9", "9" * 90, "0", ".", "e", "E", "+", "-", "99", "400", "a", '"', "\\", "\\u0000", "\\ud800", "\0", "\ud800",
     "é", "NaN", "Infinity", "[", "{" * 40, "]", "}", ":", ",", " ", "null", "0e840"]
)  # fmt: skip
texts = st.lists(fragments, max_size=40).map("".join)
PIECES = [
    *'[{]",: -\\\0', "[" * 40, '{"":' * 40, "7" * 1001, "\\u0000", "\\ud800", "NaN", "Infinity", "1e999", "9.5E+401",
    "7" * 250 + "e99",
]  # fmt: skip


@given(values.map(json.dumps) | numbers)
def test_the_quick_answer_is_the_answer_of_the_walk(text: str) -> None:
    assert find_problem(text) == next(_walk(text), None)


@given(values.map(json.dumps) | numbers | texts)
def test_what_the_codec_takes_for_harmless_has_no_problem(text: str) -> None:
    assert not is_harmless(text) or list(_walk(text)) == []


@pytest.mark.parametrize("form", ["[{}{}]", '["{}{}"]', '[{},{{"{}":1}}]'])
def test_the_quick_answer_about_dangerous_pieces_is_that_of_the_walk(form: str) -> None:
    for pair in product(PIECES, repeat=2):
        text = form.format(*pair)
        with suppress(ValueError):  # what is not JSON is the parser's to report
            json.loads(text, strict=False)
            assert find_problem(text) == next(_walk(text), None), text


hazards = st.sampled_from(["x" * 2**21, 10**4001, -(10**4001), iter(()), [1] * 200_000, range(2**30)])
parts = scalars | hazards | values


@given(st.dictionaries(clean_text | st.just("x" * 2**21), parts, max_size=20) | parts)
def test_what_the_codec_takes_for_small_has_no_hazard(value: object) -> None:
    assert not is_small(value) or find_hazard(value, MAX_PAYLOAD_BYTES) is None


@given(clean_text, clean_text, st.sampled_from(["\0", "\ud800", "\udfff", "\udc00\ud800"]), st.booleans())
def test_a_bad_character_is_found_in_values_and_in_keys(head: str, tail: str, bad: str, key: bool) -> None:
    string = head + bad + tail
    text = json.dumps({"ok": 1, "x": [{string: 1} if key else string]})
    assert problem(text).where == ("x",)
    assert ("NUL" if bad == "\0" else "surrogate") in problem(text).what


@pytest.mark.parametrize("raw", ['["\0"]', '["\ud800"]'])
def test_a_bad_character_is_found_when_it_is_not_escaped(raw: str) -> None:
    assert find_problem(raw) is not None


@pytest.mark.parametrize("string", ["\\u0000", "\\\\u0000", "\\ud800", "\U0001f600", "NaN", "Infinity", "1e999"])
def test_text_that_only_looks_dangerous_is_left_alone(string: str) -> None:
    assert find_problem(json.dumps({"x": string, string: 1})) is None


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_not_json_are_named_with_their_key(constant: str) -> None:
    found = problem(f'{{"a": "NaN", "b": [1, {constant}]}}')
    assert found.where == ("b",)
    assert found.what.startswith(str(float(constant)))


@pytest.mark.parametrize(("opener", "closer"), [("[", "]"), ('{"k":', "}")])
def test_depth_is_limited_exactly(opener: str, closer: str) -> None:
    def nested(depth: int) -> str:
        return opener * depth + "1" + closer * depth

    assert find_problem(nested(MAX_DEPTH)) is None
    assert "deeper than 64" in problem(nested(MAX_DEPTH + 1)).what


def test_brackets_in_strings_do_not_hide_depth() -> None:
    assert "deeper" in problem('["]",' * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1)).what
    assert find_problem(json.dumps(["[" * 1000, '"[' * 1000])) is None


@pytest.mark.parametrize("before", range(0, 130, 13))
@pytest.mark.parametrize("point", [None, 300])
def test_digits_are_limited_exactly_wherever_the_number_stands(before: int, point: int | None) -> None:
    def number(digits: int) -> str:
        plain = "7" * digits
        return plain if point is None else f"{plain[:point]}.{plain[point:]}"

    lead = json.dumps("x" * before)
    assert find_problem(f"[{lead},-{number(MAX_DIGITS)}]") is None
    assert f"{MAX_DIGITS + 1:,} digits" in problem(f"[{lead},-{number(MAX_DIGITS + 1)}]").what


@pytest.mark.parametrize("number", ["1e400", "1E+999999", "1e-999999", "0e131072", "1e00000000000401", "-1e309"])
def test_numbers_that_jsonb_would_write_out_are_refused(number: str) -> None:
    assert "out of range" in problem(f"[{number}]").what


@pytest.mark.parametrize("before", range(0, 40, 7))
def test_many_digits_and_a_small_exponent_are_out_of_range_too(before: int) -> None:
    lead = ",".join(["0.12345678901234567"] * before + ["0"])
    assert "out of range" in problem(f"[{lead},{'7' * 250}e60]").what
    assert "out of range" in problem(f"[{lead},7.e400]").what
    assert find_problem(f"[{lead},{'7' * 250}e40]") is None


@pytest.mark.parametrize("number", ["1e308", "5e-324", "1e0000000001", "-1.7976931348623157e+308"])
def test_every_float_is_fine(number: str) -> None:
    assert find_problem(f"[{number}]") is None


def test_nodes_are_limited_and_keys_count() -> None:
    assert find_problem(json.dumps([1] * (MAX_NODES - 1))) is None
    assert "more than 100,000 values" in problem(json.dumps([1] * MAX_NODES)).what
    assert find_problem(json.dumps(dict.fromkeys(map(str, range(MAX_NODES // 2))))) is not None


def test_bytes_are_limited_exactly_and_counted_in_utf8() -> None:
    assert find_problem('"' + "x" * (MAX_PAYLOAD_BYTES - 2) + '"') is None
    assert "1,048,577 bytes" in problem('"' + "x" * (MAX_PAYLOAD_BYTES - 1) + '"').what
    assert find_problem('"é"', max_bytes=4) is None
    assert find_problem('"é"', max_bytes=3) is not None


@pytest.mark.parametrize(
    "hostile",
    [
        '"' + '\\"' * 500_000,
        "[" * 1_000_000,
        "]" * 1_000_000,
        '"NaN' * 250_000,
        "[" + ",".join(["1" * 999] * 1_000) + "]",
        "1" * 1_000_000,
        "1e" * 500_000,
        '["\\u00' * 150_000,
    ],
    ids=lambda text: text[:8],
)
def test_hostile_text_is_judged_in_linear_time(hostile: str) -> None:
    began = time.process_time()
    find_problem(hostile)
    # A quadratic search would take minutes.
    assert time.process_time() - began < 2
