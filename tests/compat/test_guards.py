"""The guards of `tests/conftest.py` do what they say."""

import os
import socket

import pytest

import nemo_gym.global_config

ELSEWHERE = ("203.0.113.1", 9)
"""An address reserved for documentation: nobody answers there."""


def test_a_test_cannot_reach_another_machine():
    """An offline test that needs the network passes here and fails at a customer's."""
    with socket.socket() as way_out, pytest.raises(pytest.fail.Exception, match=r"203\.0\.113\.1"):
        way_out.connect(ELSEWHERE)


def test_a_test_can_reach_this_machine():
    """Servers in tests listen on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


@pytest.mark.parametrize("attempt", [1, 2])
def test_no_test_finds_the_configuration_of_another(attempt):
    """Whichever of these two runs second would see what the first one left."""
    assert nemo_gym.global_config._GLOBAL_CONFIG_DICT is None
    assert "NEMO_GYM_CONFIG_DICT" not in os.environ

    nemo_gym.global_config._GLOBAL_CONFIG_DICT = {"attempt": attempt}
