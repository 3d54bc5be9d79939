"""Laws of a token's text: it reads back, nothing else does, and its secret is shown by nothing but `reveal`."""

import hashlib
import hmac
import logging
import traceback
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import tokens
from leasehold.tokens import TokenText, make_token, parse_token


@given(st.uuids(), st.binary(min_size=32, max_size=32))
def test_a_token_reads_back(id_: UUID, secret: bytes) -> None:
    text = TokenText(id_, secret).reveal()
    assert parse_token(text) == TokenText(id_, secret)
    assert text.startswith("lh_")
    assert len(text) == 3 + 22 + 1 + 43
    assert text.isascii()
    assert not set(text) & set(" +/=&?#%\"'")


@given(st.text())
def test_any_other_text_is_no_token_and_no_error(text: str) -> None:
    assert parse_token(text) is None


@given(st.uuids(), st.integers(0, 68), st.characters())
def test_one_other_character_is_another_token_or_none(id_: UUID, place: int, other: str) -> None:
    text = TokenText(id_, b"s" * 32).reveal()
    changed = text[:place] + other + text[place + 1 :]
    token = parse_token(changed)
    if changed != text:
        assert token is None or token.reveal() == changed


@pytest.mark.parametrize("text", ["", "lh_", "lh__", "Bearer x", "lh_" + "a" * 22 + "_" + "b" * 43 + "\n", "lh-"])
def test_what_is_almost_a_token_is_none(text: str) -> None:
    assert parse_token(text) is None


def test_every_token_has_a_secret_of_its_own() -> None:
    id_ = uuid4()
    assert len({make_token(id_).secret for _ in range(100)}) == 100
    assert len(make_token(id_).secret) == 32


def test_what_is_kept_is_the_sha256_of_the_secret() -> None:
    token = make_token(uuid4())
    assert token.hash() == hashlib.sha256(token.secret).digest()
    assert token.fits(token.hash())
    assert not token.fits(make_token(token.id).hash())
    assert not token.fits(b"")


def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(tokens.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    token = TokenText(uuid4(), b"s" * 32)
    token.fits(b"x" * 32)
    assert compared == [(token.hash(), b"x" * 32)]
    assert hmac.compare_digest is tokens.hmac.compare_digest


def test_neither_repr_nor_str_nor_a_log_line_nor_a_traceback_shows_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    token = make_token(uuid4())
    secret = token.reveal().split("_", 2)[2]
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("%s %r %s", token, token, [token])
    shown = "".join(traceback.format_exception(ValueError(token)))
    for text in (repr(token), str(token), f"{token}", caplog.text, shown):
        assert secret not in text
        assert repr(token.secret) not in text
        assert str(token.id) in text
