"""Virtual environments without an installer, for tests that must not need the network."""

import sys
import sysconfig
import venv
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "network: needs the package registry; skipped where it cannot be reached")


def make_venv(target: Path) -> Path:
    """Create a virtual environment that sees the packages of this interpreter but has another prefix."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(target)
    own_packages = sysconfig.get_paths()["purelib"]
    major, minor = sys.version_info[:2]
    packages = target / "lib" / f"python{major}.{minor}" / "site-packages"
    (packages / "borrowed.pth").write_text(f"import site; site.addsitedir({own_packages!r})\n")
    return target


@pytest.fixture(name="make_venv")
def _make_venv() -> object:
    return make_venv
