"""Environments made without an installer, for tests that must not need the network."""

import sys
import sysconfig
import venv
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: needs the package registry; skipped where it cannot be reached")


def make_environment(target: Path) -> Path:
    """A virtual environment that sees what this interpreter sees, with a prefix of its own."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(target)
    here = sysconfig.get_paths()["purelib"]
    major, minor = sys.version_info[:2]
    packages = target / "lib" / f"python{major}.{minor}" / "site-packages"
    (packages / "borrowed.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return target


@pytest.fixture(name="make_environment")
def _make_environment() -> object:
    return make_environment
