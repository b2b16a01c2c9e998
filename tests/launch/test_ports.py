"""Ports are bound once, by the parent, before they are published."""

import os
import socket

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch import ports
from nemo_gym.launch.ports import (
    PortTaken,
    listen,
    listen_for_head,
    listen_in_range,
    listen_on_unix_socket,
    refuse_connections,
)


def test_a_taken_port_is_refused_with_its_number() -> None:
    """Two runs on one host are frequent; the message must name the port and the fix."""
    with listen("one", "127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(PortTaken, match=f"^two: port {port} on 127.0.0.1 is in use"):
            listen("two", "127.0.0.1", port)


def test_a_range_gives_a_free_port_of_it() -> None:
    """Taken ports are skipped."""
    with listen("probe", "127.0.0.1", 0) as probe:
        taken = probe.getsockname()[1]

        with listen_in_range("s", "127.0.0.1", taken, taken + 20) as listener:
            assert taken < listener.getsockname()[1] <= taken + 20


def test_a_full_range_is_an_error() -> None:
    """The search ends after fifty tries."""
    with listen("probe", "127.0.0.1", 0) as probe:
        taken = probe.getsockname()[1]

        with pytest.raises(PortTaken, match=f"no free port between {taken} and {taken}"):
            listen_in_range("s", "127.0.0.1", taken, taken)


def test_an_address_of_another_machine_is_a_configuration_error() -> None:
    """`host` is where this server listens, not where another one is."""
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        listen("s", "192.0.2.1", 0)


def test_connections_wait_until_the_server_is_up() -> None:
    """The socket listens from the start, so an early caller waits instead of failing."""
    with listen("s", "127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), timeout=5) as early:
        assert early.getpeername() == listener.getsockname()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_closed_socket_refuses_waiting_and_new_callers_although_another_process_holds_it(kind: str) -> None:
    """The zygote keeps every listener open; callers of a server that was given up must not wait for it."""
    listener = listen("s", "127.0.0.1", 0) if kind == "tcp" else listen_on_unix_socket()
    with listener, socket.socket(fileno=os.dup(listener.fileno())), socket.socket(listener.family) as waiting:
        waiting.settimeout(5)
        waiting.connect(listener.getsockname())

        refuse_connections(listener)

        with pytest.raises(OSError), socket.socket(listener.family) as late:
            late.connect(listener.getsockname())
        try:
            assert waiting.recv(1) == b""
        except ConnectionResetError:
            assert kind == "tcp"


def test_the_default_head_port_gives_way_to_the_next_free_one_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two runs on one host are normal; the user must see which head belongs to which run."""
    with listen("another run", "127.0.0.1", 0) as first:
        default = first.getsockname()[1]
        monkeypatch.setattr(ports, "DEFAULT_HEAD_SERVER_PORT", default)

        with listen_for_head("127.0.0.1", ports.OFFLINE_PORT) as head:
            port = head.getsockname()[1]

    assert default < port < default + ports.MAX_ATTEMPTS
    assert caplog.messages == [f"port {default} is in use; the head server uses {port}"]


def test_a_chosen_head_port_is_never_replaced() -> None:
    """Others know it."""
    with listen("another run", "127.0.0.1", 0) as first, pytest.raises(PortTaken) as caught:
        listen_for_head("127.0.0.1", first.getsockname()[1])

    assert caught.value.exit_status == 3
