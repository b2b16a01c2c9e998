"""Find the user of the process at the other end of a TCP connection from this machine.

Linux keeps the user of every socket. `NETLINK_SOCK_DIAG` returns one socket in microseconds; where it is not available,
the tables `/proc/net/tcp` and `tcp6` are read. The peer's socket is found only if it is on this machine.
"""

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

IPAddress = IPv4Address | IPv6Address
SocketAddress = tuple[IPAddress, int]
"""IP address and port."""

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_SOCKET_ID = struct.Struct("!HH16s16s12s")
_ANY_INTERFACE_NO_COOKIE = b"\0" * 4 + b"\xff" * 8
_OWNER = struct.Struct("=II")
_OWNER_OFFSET = _HEADER.size + 4 + _SOCKET_ID.size + 12
"""Position of user and inode in an answer: after the state, the socket id and three counters."""


def is_same_user(peer: tuple[str, int], local: tuple[str, int]) -> bool:
    """Return True if a process of this user on this machine holds the socket at `peer`; False if that is unknown."""
    peer_address, local_address = _parse_address(peer[0]), _parse_address(local[0])
    if not peer_address.is_loopback and peer_address != local_address:
        return False  # another machine: a local client connects from loopback or from the address it calls
    return _socket_owner((peer_address, peer[1]), (local_address, local[1])) == (os.geteuid(), True)


def _parse_address(text: str) -> IPAddress:
    """Return an IP address; an IPv4 address that is mapped into IPv6 as IPv4."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _socket_owner(peer: SocketAddress, local: SocketAddress) -> tuple[int, bool] | None:
    """Return the user of the peer's socket, and whether a process holds it; None if the socket is not found.

    A socket that was closed with unsent data belongs to no process; Linux reports it as a socket of root.
    """
    try:
        return _query_kernel(peer, local)
    except OSError:
        return next(_search_tables(peer, local), None)


def _query_kernel(peer: SocketAddress, local: SocketAddress) -> tuple[int, bool] | None:
    """Query one socket of the kernel.

    Raises:
        OSError: there is no such socket, or the kernel or the container does not support the query.
    """
    family = socket.AF_INET if peer[0].version == 4 else socket.AF_INET6
    addresses = (one.packed.ljust(16, b"\0") for one in (peer[0], local[0]))
    socket_id = _SOCKET_ID.pack(peer[1], local[1], *addresses, _ANY_INTERFACE_NO_COOKIE)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + socket_id
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.send(header + request)
        answer = netlink.recv(4096)
    if len(answer) < _OWNER_OFFSET + _OWNER.size:  # an error: not found, or not supported
        raise OSError("no answer about the socket")
    if answer[_HEADER.size + 4 :][:4] != socket_id[:4]:  # a listening socket on the same port
        return None
    user, inode = _OWNER.unpack_from(answer, _OWNER_OFFSET)
    return user, inode != 0


def _search_tables(peer: SocketAddress, local: SocketAddress) -> Iterator[tuple[int, bool]]:
    """Yield the owner of the peer's socket from the tables of all TCP sockets."""
    for path, is_ipv6_table in (("/proc/net/tcp", False), ("/proc/net/tcp6", True)):
        ends = [f"{_table_address(address, is_ipv6_table)}:{port:04X}" for address, port in (peer, local)]
        try:
            text = Path(path).read_text()
        except OSError:
            continue
        for line in text.splitlines():
            columns = line.split(maxsplit=10)
            if columns[1:3] == ends:
                yield int(columns[7]), columns[9] != "0"  # user and inode


def _table_address(address: IPAddress, is_ipv6_table: bool) -> str:
    """Return an address as the tables show it: hexadecimal, in words of the machine's byte order."""
    packed = address.packed if not is_ipv6_table or address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
