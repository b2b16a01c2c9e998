"""Start a box: hand `bwrap` its files, map its user, wait until process 1 speaks."""

import contextlib
import io
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.providers.local import bubblewrap, seccomp
from nemo_gym.sandbox.providers.local.bubblewrap import Descriptors, Shape
from nemo_gym.sandbox.providers.local.cgroups import MEMORY, Cgroups, Group
from nemo_gym.sandbox.spec import SandboxCreateError

START_TIMEOUT_S = 30.0
"""For a machine that is very busy; an idle one needs a twentieth of a second."""

GONE_TIMEOUT_S = 10.0

_FIRST_OUTER_USER, _OUTER_USERS = 1_900_000_000, 100_000_000
"""Numbers no account has; every box takes one at random, so boxes are strangers to each other, too."""

_WORDS_BYTES = 4096


@dataclass(eq=False)
class Box:
    """A running box as seen from outside: its processes, the socket to process 1, its control groups."""

    name: str
    shape: Shape
    bwrap: "subprocess.Popen[bytes]"
    pid: int
    """Number of process 1, good for looking while the box is alive."""
    first: int
    """Descriptor of process 1; a number could mean another process one day, this cannot."""
    control: socket.socket
    group: Group | None
    own_user: bool
    """Outside, too, its processes belong to a user that nobody else is."""
    landlock: int = 0
    closed: bool = field(default=False)

    def kill(self) -> None:
        """End every process of the box at once. Bubblewrap reaps process 1 and ends by itself."""
        if not self.closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)

    @property
    def alive(self) -> bool:
        """Whether process 1 is still there."""
        return not self.closed and not _is_readable(self.first, 0.0)

    def close(self) -> bool:
        """End the box and wait until nothing is left of it; False if something stays longer than that."""
        if self.closed:
            return True
        self.kill()
        self.closed = True
        self.control.close()
        gone = _is_readable(self.first, GONE_TIMEOUT_S)
        os.close(self.first)
        try:
            self.bwrap.wait(GONE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            gone = False
            self.bwrap.kill()
            self.bwrap.wait()
        if self.bwrap.stderr is not None:
            self.bwrap.stderr.close()
        return self._without_group() and gone

    def _without_group(self) -> bool:
        if self.group is None:
            return True
        until = time.monotonic() + GONE_TIMEOUT_S
        while not self.group.remove():
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True


def launch(bwrap: str, shape: Shape, cgroups: Cgroups | None, *, preload: bool = False) -> Box:
    """Start a box and wait until it can take orders. Blocks; the box dies with the thread that calls this.

    With `preload` it has loaded the modules that programs often want: right for a box that waits, not for one somebody
    waits for.

    Raises:
        SandboxCreateError: there is none, and nothing of it is left.
    """
    name = f"box-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        try:
            group = None if cgroups is None else cgroups.group(name)
            if group is not None:
                ours.callback(group.remove)
            control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(control.close)
            theirs.callback(far.close)
            box = _started(name, bwrap, shape, group, control, far, theirs, preload)
        except OSError as error:
            raise SandboxCreateError(f"cannot be started: {error.strerror or error}", where="bubblewrap") from error
        ours.pop_all()
    try:
        box.landlock = int(_first_words(box)["landlock"])
        control.setblocking(False)
    except BaseException:
        box.close()
        raise
    return box


def find_bwrap() -> str | None:
    """Where bubblewrap is."""
    return shutil.which("bwrap")


def maps_users() -> bool:
    """Whether we may give a box a user of its own outside, too: root of the machine may."""
    if os.geteuid() != 0:
        return False
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = _FIRST_OUTER_USER + _OUTER_USERS
    return any(first <= _FIRST_OUTER_USER and last <= first + count for first, _, count in mapped)


def _started(
    name: str,
    bwrap: str,
    shape: Shape,
    group: Group | None,
    control: socket.socket,
    far: socket.socket,
    theirs: contextlib.ExitStack,
    preload: bool,
) -> Box:
    counted = group is not None and MEMORY in group.folders
    info, info_for_bwrap = _pipe(theirs)
    block_for_bwrap, block = _pipe(theirs) if maps_users() else (None, None)
    files = Descriptors(
        control=far.fileno(),
        info=info_for_bwrap.fileno(),
        filter=_memory_file("filter", seccomp.program(counts_memory=counted), theirs),
        passwd=_memory_file("passwd", bubblewrap.passwd(shape.workdir), theirs),
        block=None if block_for_bwrap is None else block_for_bwrap.fileno(),
        entrances=[_opened(path, theirs) for path in (group.entrances() if group else [])],
    )
    process = subprocess.Popen(
        bubblewrap.arguments(bwrap, shape, files, preload=preload),
        pass_fds=files.all(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    )
    box: Box | None = None
    try:
        info_for_bwrap.close()
        pid = _child_pid(info, process)
        box = Box(name, shape, process, pid, os.pidfd_open(pid), control, group, block is not None)
        if block is not None:
            _map_users(pid)
            block.write(b"1")
        if group is not None and not files.entrances:
            group.admit(pid)
    except BaseException:
        _abandon(process, box)
        raise
    return box


def _abandon(process: "subprocess.Popen[bytes]", box: Box | None) -> None:
    if box is not None:
        box.close()
        return
    process.kill()
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _first_words(box: Box) -> dict[str, Any]:
    """What process 1 says when it is ready."""
    box.control.settimeout(START_TIMEOUT_S)
    try:
        said = box.control.recv(_WORDS_BYTES)
    except TimeoutError:
        raise SandboxCreateError(f"not ready within {START_TIMEOUT_S:g} s", where="bubblewrap") from None
    if not said:
        raise SandboxCreateError(_last_words(box.bwrap), where="bubblewrap")
    words: dict[str, Any] = json.loads(said)
    return words


def _child_pid(info: io.FileIO, process: "subprocess.Popen[bytes]") -> int:
    """The number of process 1 as bubblewrap reports it."""
    until = time.monotonic() + START_TIMEOUT_S
    said = b""
    while b"}" not in said:
        ready = _is_readable(info.fileno(), until - time.monotonic())
        chunk = info.read(_WORDS_BYTES) if ready else b""
        if not chunk:
            raise SandboxCreateError(_last_words(process), where="bubblewrap")
        said += chunk
    return int(json.loads(said)["child-pid"])


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until there is something to read; the descriptor of a process: until it has ended."""
    waiting = select.poll()  # select.select cannot take numbers beyond 1023, which a busy server has
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(0.0, timeout_s) * 1000))


def _last_words(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    assert process.stderr is not None
    said = os.read(process.stderr.fileno(), _WORDS_BYTES) if process.wait() is not None else b""
    lines = said.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or f"ended with status {process.returncode}"


def _map_users(pid: int) -> None:
    """Let the box's user be, outside, a number that owns nothing; root is there only until process 1 changes."""
    outer = _FIRST_OUTER_USER + secrets.randbelow(_OUTER_USERS)
    mapping = f"0 0 1\n{bubblewrap.BOX_USER} {outer} 1\n"
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(mapping, encoding="ascii")


def _pipe(theirs: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Both ends as objects: closing one twice does not close a stranger that got its number meanwhile."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    return theirs.enter_context(io.FileIO(reading, "rb")), theirs.enter_context(io.FileIO(writing, "wb"))


def _memory_file(name: str, content: bytes, theirs: contextlib.ExitStack) -> int:
    made = os.memfd_create(name)
    theirs.callback(os.close, made)
    os.write(made, content)
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _opened(path: Path, theirs: contextlib.ExitStack) -> int:
    opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    theirs.callback(os.close, opened)
    return opened
