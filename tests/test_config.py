"""Settings come from the environment, and what is given in code wins."""

from pathlib import Path

import pytest

from leasehold import App, ConfigError
from leasehold._locate import located
from leasehold.config import DEFAULT_SCHEMA, Settings, checked_schema

VARIABLES = ("LEASEHOLD_DSN", "LEASEHOLD_SCHEMA", "LEASEHOLD_HOME", "LEASEHOLD_ENV", "LEASEHOLD_PREPARE")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_an_environment_the_defaults_hold() -> None:
    expected = Settings(dsn=None, schema=DEFAULT_SCHEMA, home=Path(".leasehold"), production=False, prepare=True)
    assert Settings.from_env() == Settings() == expected


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("postgresql://x", "jobs", "/data", " Production ", "OFF"), strict=True):
        monkeypatch.setenv(name, value)
    read = Settings.from_env()
    assert read == Settings(dsn="postgresql://x", schema="jobs", home=Path("/data"), production=True, prepare=False)


def test_what_is_given_in_code_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_DSN", "postgresql://environment")
    monkeypatch.setenv("LEASEHOLD_SCHEMA", "environment")
    settings = App("postgresql://code", schema="code").settings
    assert (settings.dsn, settings.schema) == ("postgresql://code", "code")


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    assert Settings.from_env() == Settings()


@pytest.mark.parametrize(("text", "expected"), [("on", True), ("1", True), ("Yes", True), ("0", False), ("no", False)])
def test_a_switch_is_on_or_off(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("LEASEHOLD_PREPARE", text)
    assert Settings.from_env().prepare is expected


def test_a_switch_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_PREPARE", "off,")
    with pytest.raises(ConfigError, match="LEASEHOLD_PREPARE='off,' is neither on nor off"):
        Settings.from_env()


def test_a_password_is_not_shown() -> None:
    app = App("postgresql://me:hunter2@localhost/x")
    assert "hunter2" not in f"{app.settings!r} {app.settings} {app!r}"


@pytest.mark.parametrize("name", ["leasehold", "_jobs", "jobs_2", "a" * 40])
def test_a_schema_may_have_a_plain_name(name: str) -> None:
    assert checked_schema(name) == name
    assert App(schema=name).settings.schema == name


@pytest.mark.parametrize("name", ["public", "information_schema", "pg_jobs", "Jobs", "2jobs", 'a"b', "a b", "a" * 41])
def test_a_schema_may_not_have_any_other(name: str) -> None:
    with pytest.raises(ConfigError, match=r"schema name .* (is not valid|belongs to PostgreSQL)"):
        App(schema=name)


def test_in_production_no_server_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEASEHOLD_ENV", "production")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="set LEASEHOLD_DSN"), located(Settings.from_env()):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_database_that_is_set_is_the_one_that_is_used() -> None:
    with located(Settings(dsn="postgresql://there", production=True)) as dsn:
        assert dsn == "postgresql://there"
