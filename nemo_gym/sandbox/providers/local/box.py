"""Start and end boxes: pass files to `bwrap`, map the user, wait until process 1 is ready."""

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
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.sandbox.providers.local import bubblewrap, seccomp
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape, Descriptors
from nemo_gym.sandbox.providers.local.cgroups import MEMORY, BoxCgroup, Cgroups
from nemo_gym.sandbox.providers.local.limits import child_pids
from nemo_gym.sandbox.spec import SandboxCreateError

START_TIMEOUT_S = 30.0
"""For a very busy machine; an idle one needs a twentieth of a second."""

END_TIMEOUT_S = 10.0

_FIRST_OUTER_USER, _OUTER_USERS = 1_900_000_000, 100_000_000
"""User ids of no account; every box takes a random one, so that boxes are isolated from each other as well."""

_MESSAGE_BYTES = 4096


@dataclass(eq=False)
class Box:
    """A running box as seen from outside: its processes, the socket to process 1, its control groups."""

    name: str
    shape: BoxShape
    process: "subprocess.Popen[bytes]"
    """Bubblewrap; without isolation, the supervisor itself."""
    pid: int
    """Process id of process 1, valid while the box is alive."""
    pidfd: int
    """Descriptor of process 1; unlike an id it never refers to another process."""
    control: socket.socket
    workdir: str
    group: BoxCgroup | None = None
    has_own_user: bool = False
    """Outside the box, too, its processes belong to a user id that is used for nothing else."""
    folder: "tempfile.TemporaryDirectory[str] | None" = None
    """The files of a box without isolation."""
    landlock: int = 0
    is_closed: bool = False

    @property
    def is_isolated(self) -> bool:
        return self.folder is None

    @property
    def alive(self) -> bool:
        """Return whether process 1 is running."""
        return not self.is_closed and not _is_readable(self.pidfd, 0.0)

    def kill(self) -> None:
        """Kill every process of the box. Bubblewrap reaps process 1 and ends by itself."""
        if self.is_closed:
            return
        if not self.is_isolated:  # no namespace ends the program's process group together with process 1
            for child in child_pids(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> bool:
        """End the box and wait until nothing is left of it; False if that takes too long."""
        if self.is_closed:
            return True
        self.kill()
        self.is_closed = True
        self.control.close()
        is_gone = _is_readable(self.pidfd, END_TIMEOUT_S)
        os.close(self.pidfd)
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            is_gone = False
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.cleanup()
        return self._remove_group() and is_gone

    def _remove_group(self) -> bool:
        if self.group is None:
            return True
        deadline = time.monotonic() + END_TIMEOUT_S
        while not self.group.remove():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def wait_ready(self) -> None:
        """Wait until process 1 accepts orders.

        Raises:
            SandboxCreateError: it does not; nothing of the box is left.
        """
        try:
            self.control.settimeout(START_TIMEOUT_S)
            message = self.control.recv(_MESSAGE_BYTES)
            if not message:
                raise SandboxCreateError(_last_lines(self.process), where="bubblewrap")
            self.landlock = int(json.loads(message)["landlock"])
            self.control.setblocking(False)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise SandboxCreateError(f"not ready within {START_TIMEOUT_S:g} s", where="bubblewrap") from None
            raise


def launch(bwrap: str, cgroups: Cgroups | None, shape: BoxShape, *, preload: bool = False) -> Box:
    """Start a box and wait until it accepts orders. Blocks; the box ends with the thread that calls this.

    With `preload`, process 1 imports the modules that programs often use: right for a box that is made in advance.

    Raises:
        SandboxCreateError: the box cannot be made; nothing of it is left.
    """
    name = f"box-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        try:
            group = None if cgroups is None else cgroups.group(name)
            if group is not None:
                ours.callback(group.remove)
            control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(control.close)
            theirs.callback(remote.close)
            box = _start_bwrap(name, bwrap, shape, group, control, remote, theirs, preload)
        except OSError as error:
            raise SandboxCreateError(f"cannot be started: {error.strerror or error}", where="bubblewrap") from error
        ours.pop_all()
    box.wait_ready()
    return box


def launch_without_isolation(shape: BoxShape, *, preload: bool = False) -> Box:
    """Start the supervisor as an ordinary process in a temporary folder: same orders and limits, no isolation."""
    folder = tempfile.TemporaryDirectory(prefix="nemo-gym-unsandboxed-")
    workdir, library = Path(folder.name, "work"), Path(folder.name, "lib")
    workdir.mkdir()
    inside = library / bubblewrap.INSIDE_PACKAGE
    inside.parent.mkdir(parents=True)
    inside.symlink_to(bubblewrap.INSIDE_SOURCE)
    control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote, contextlib.ExitStack() as cleanup:
        cleanup.callback(folder.cleanup)
        cleanup.callback(control.close)
        process = subprocess.Popen(
            bubblewrap.supervisor_command(str(library), remote.fileno(), preload=preload),
            pass_fds=[remote.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
        pidfd = os.pidfd_open(process.pid)
        cleanup.pop_all()
    box = Box(folder.name, shape, process, process.pid, pidfd, control, str(workdir), folder=folder)
    box.wait_ready()
    return box


def find_bwrap() -> str | None:
    """Return the path of bubblewrap, or None."""
    return shutil.which("bwrap")


def can_map_users() -> bool:
    """Return whether a box can have a user id that is unused outside: root of the machine may map one."""
    if os.geteuid() != 0:
        return False
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = _FIRST_OUTER_USER + _OUTER_USERS
    return any(first <= _FIRST_OUTER_USER and last <= first + count for first, _, count in mapped)


def _start_bwrap(
    name: str,
    bwrap: str,
    shape: BoxShape,
    group: BoxCgroup | None,
    control: socket.socket,
    remote: socket.socket,
    theirs: contextlib.ExitStack,
    preload: bool,
) -> Box:
    counts_memory = group is not None and MEMORY in group.folders
    info, info_for_bwrap = _pipe(theirs)
    block_for_bwrap, block = _pipe(theirs) if can_map_users() else (None, None)
    files = Descriptors(
        control=remote.fileno(),
        info=info_for_bwrap.fileno(),
        filter=_memory_file("filter", seccomp.filter_program(counts_memory=counts_memory), theirs),
        passwd=_memory_file("passwd", bubblewrap.passwd_file(shape.workdir), theirs),
        block=None if block_for_bwrap is None else block_for_bwrap.fileno(),
        entrances=[_open_for_writing(path, theirs) for path in (group.entrances() if group else [])],
    )
    process = subprocess.Popen(
        bubblewrap.bwrap_command(bwrap, shape, files, preload=preload),
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
        pidfd = os.pidfd_open(pid)
        box = Box(name, shape, process, pid, pidfd, control, shape.workdir, group, block is not None)
        if block is not None:
            _map_users(pid)
            block.write(b"1")
        if group is not None and not files.entrances:
            group.admit(pid)
    except BaseException:
        if box is not None:
            box.close()
        else:
            process.kill()
            process.communicate()
        raise
    return box


def _child_pid(info: io.FileIO, process: "subprocess.Popen[bytes]") -> int:
    """Read the process id of process 1 from bubblewrap's report."""
    deadline = time.monotonic() + START_TIMEOUT_S
    report = b""
    while b"}" not in report:
        is_ready = _is_readable(info.fileno(), deadline - time.monotonic())
        chunk = info.read(_MESSAGE_BYTES) if is_ready else b""
        if not chunk:
            raise SandboxCreateError(_last_lines(process), where="bubblewrap")
        report += chunk
    return int(json.loads(report)["child-pid"])


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until a descriptor is readable; that of a process is readable once the process has ended."""
    poll = select.poll()  # select.select cannot take descriptors above 1023, which a busy server has
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _last_lines(process: "subprocess.Popen[bytes]") -> str:
    """Kill a process and return the last lines of its stderr."""
    process.kill()
    assert process.stderr is not None
    output = os.read(process.stderr.fileno(), _MESSAGE_BYTES) if process.wait() is not None else b""
    lines = output.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or f"ended with status {process.returncode}"


def _map_users(pid: int) -> None:
    """Map the box's user to an unused id outside; root is mapped only until process 1 changes its user."""
    outer = _FIRST_OUTER_USER + secrets.randbelow(_OUTER_USERS)
    mapping = f"0 0 1\n{bubblewrap.BOX_USER} {outer} 1\n"
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(mapping, encoding="ascii")


def _pipe(theirs: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Open a pipe as file objects: closing one twice cannot close a descriptor that reused its number."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    return theirs.enter_context(io.FileIO(read_end, "rb")), theirs.enter_context(io.FileIO(write_end, "wb"))


def _memory_file(name: str, content: bytes, theirs: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create(name)
    theirs.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _open_for_writing(path: Path, theirs: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    theirs.callback(os.close, descriptor)
    return descriptor
