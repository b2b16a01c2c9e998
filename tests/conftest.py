"""Guards shared by every test: no way out of this machine, no configuration left behind."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")

HTTPX_NOTICE = "ignore:Using .httpx. with .starlette.testclient. is deprecated"


def pytest_configure(config: pytest.Config) -> None:
    # Starlette's test client asks for httpx2, with which cookie tests of existing folders break: httpx it stays.
    config.addinivalue_line("filterwarnings", HTTPX_NOTICE)
    forget_configuration()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start what they put in the background like this; tests that interrupt would not end.
        signal.signal(signal.SIGINT, signal.default_int_handler)


LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


@pytest.fixture(autouse=True)
def _no_network_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that would reach another machine fails at once instead of depending on it."""

    def loopback_only(name: str) -> Any:
        original = getattr(socket.socket, name)

        def connect(self: socket.socket, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(LOOPBACK):
                pytest.fail(f"this test tried to connect to {address[0]}:{address[1]}")
            return original(self, address)

        return connect

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, loopback_only(name))


CONFIGURATION = ("NEMO_GYM_CONFIG_DICT", "NEMO_GYM_CONFIG_PATH", "NEMO_GYM_EXTRA_ROOTS")


def forget_configuration() -> None:
    for name in CONFIGURATION:
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _configuration_is_not_inherited() -> Iterator[None]:
    """No test sees the process-wide configuration of another one, or of the person who runs them.

    Commands that are run in this process set it as they would in their own; fixtures of a module are made before those
    of its first test, so it is not enough to take it away there.
    """
    yield
    forget_configuration()
    module = sys.modules.get("nemo_gym.global_config")
    if module is not None:
        module._GLOBAL_CONFIG_DICT = None
    secret_text = sys.modules.get("nemo_gym.config.secret_text")
    if secret_text is not None:  # a secret of one test may be an ordinary word in another
        secret_text.forget_secrets()
