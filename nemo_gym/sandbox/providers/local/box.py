"""Start and kill boxes: pass files to `bwrap`, map the user, wait until the init process is ready."""

import contextlib
import fcntl
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.processes import process_tree, start_ticks
from nemo_gym.sandbox.providers.local import bubblewrap, seccomp
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape, Descriptors
from nemo_gym.sandbox.providers.local.cgroups import MEMORY, BoxCgroup, Cgroups
from nemo_gym.sandbox.spec import SandboxCreateError

START_TIMEOUT_S = 30.0
"""Sufficient for a very busy machine; an idle one needs about 0.05 s."""

END_TIMEOUT_S = 10.0

_FIRST_HOST_USER, _HOST_USERS = 1_900_000_000, 100_000_000
"""Unused user ids; every box gets a random one, so that boxes are isolated from each other as well."""

_MESSAGE_BYTES = 4096
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(eq=False)
class Box:
    """A running box on the host: its processes, the socket to its init process, its control groups."""

    name: str
    process: "subprocess.Popen[bytes]"
    """Bubblewrap; without isolation, the init process itself."""
    pid: int
    """Host process id of the init process, valid while the box is alive."""
    pidfd: int
    """Process descriptor of the init process; unlike a process id it is never reused."""
    control: socket.socket
    workdir: str
    group: BoxCgroup | None = None
    has_own_user: bool = False
    """The processes have a host user id that no other process uses."""
    folder: "tempfile.TemporaryDirectory[str] | None" = None
    """The files of a box without isolation; None for an isolated box."""
    landlock: int = 0
    """Version of Landlock that the init process reported; 0 if the kernel has none."""
    is_closed: bool = False

    @property
    def is_isolated(self) -> bool:
        return self.folder is None

    @property
    def writable(self) -> list[str]:
        """Return the folders, in memory, that a program may write to."""
        return BoxShape(self.workdir).writable

    @property
    def alive(self) -> bool:
        """Return whether the init process is running."""
        return not self.is_closed and not _is_readable(self.pidfd, 0.0)

    def kill(self) -> None:
        """Kill every process of the box. Bubblewrap reaps the init process and exits by itself."""
        if self.is_closed:
            return
        if not self.is_isolated:  # without a namespace the kernel does not kill the program with the init process
            _kill_descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> bool:
        """Kill the box, wait for its processes and remove its files and groups; return False on timeout."""
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_TIMEOUT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.cleanup()
        return self._remove_group() and is_gone

    def _remove_group(self) -> bool:
        """Remove the control groups, which is possible only after the last process has exited; False on timeout."""
        if self.group is None:
            return True
        deadline = time.monotonic() + END_TIMEOUT_S
        while not self.group.remove():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def wait_ready(self) -> None:
        """Wait until the init process accepts commands.

        Raises:
            SandboxCreateError: the init process exited or is not ready in time.
        """
        try:
            self.control.settimeout(START_TIMEOUT_S)
            message = self.control.recv(_MESSAGE_BYTES)
        except TimeoutError:
            raise SandboxCreateError(f"not ready within {START_TIMEOUT_S:g} s", where="bubblewrap") from None
        if not message:
            raise SandboxCreateError(_kill_and_read_stderr(self.process), where="bubblewrap")
        self.landlock = int(json.loads(message)["landlock"])
        self.control.setblocking(False)


def launch(bwrap: str, cgroups: Cgroups | None, shape: BoxShape, *, preload: bool = False) -> Box:
    """Start a box and wait until it accepts commands. Blocks.

    If this process is killed at any step, the box ends by itself. `bwrap --die-with-parent` would not achieve that: if
    `bwrap` is killed before it has released its child, the child waits forever. Therefore nothing outside kills `bwrap`
    until it has reported its child, and the init process exits when this process has ended.

    With `preload`, the init process imports modules that programs often use; useful for boxes created in advance.

    Raises:
        SandboxCreateError: the box cannot be created; a partial one has been removed.
    """
    name = f"box-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as child_files:
        try:
            group = None if cgroups is None else cgroups.create_group(name)
            if group is not None:
                on_failure.callback(group.remove)
            control, box_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            on_failure.callback(control.close)
            child_files.enter_context(box_end)
            # bwrap inherits both ends: writing the report must not fail (SIGPIPE) if this process has been killed.
            info_pipe, info_for_bwrap = _pipe(child_files)
            owner = child_files.enter_context(io.FileIO(os.pidfd_open(os.getpid()), "rb"))
            block_for_bwrap, block = _pipe(child_files) if can_map_users() else (None, None)
            counts_memory = group is not None and MEMORY in group.folders
            join_paths = [] if group is None else group.join_files()
            system_calls = seccomp.filter_program(counts_memory=counts_memory, has_loopback=shape.has_loopback)
            files = Descriptors(
                control=box_end.fileno(),
                owner=owner.fileno(),
                info_reader=info_pipe.fileno(),
                info=info_for_bwrap.fileno(),
                filter=child_files.enter_context(sealed_file(system_calls)),
                passwd=child_files.enter_context(sealed_file(bubblewrap.passwd_file(shape.workdir))),
                block=None if block_for_bwrap is None else block_for_bwrap.fileno(),
                join_files=[child_files.enter_context(path.open("wb", 0)).fileno() for path in join_paths],
            )
            command = bubblewrap.bwrap_command(bwrap, shape, files, preload=preload, counts_memory=counts_memory)
            process = _start_process(command, files.all())
            on_failure.push(process)
            on_failure.callback(_kill_group, process)
            info_for_bwrap.close()
            box_end.close()
            pid = _init_pid(info_pipe, process)
            pidfd = os.pidfd_open(pid)
            box = Box(name, process, pid, pidfd, control, shape.workdir, group, has_own_user=block is not None)
            on_failure.callback(box.close)
            if block is not None:
                _map_users(pid)
                block.write(b"1")  # bwrap waits for this byte
            if group is not None and not files.join_files:  # version 2
                group.add_process(pid)
            box.wait_ready()
        except OSError as error:
            raise SandboxCreateError(f"cannot be started: {error.strerror or error}", where="bubblewrap") from error
        on_failure.pop_all()
    return box


def launch_without_isolation(_shape: BoxShape, *, preload: bool = False) -> Box:
    """Start the init process as an ordinary process in a temporary folder: same commands and limits, no isolation."""
    with contextlib.ExitStack() as on_failure:
        folder = tempfile.TemporaryDirectory(prefix="nemo-gym-unsandboxed-")
        on_failure.push(folder)
        workdir, library = Path(folder.name, "work"), Path(folder.name, "lib")
        workdir.mkdir()
        inside = library / bubblewrap.INSIDE_PACKAGE
        inside.parent.mkdir(parents=True)
        inside.symlink_to(bubblewrap.INSIDE_SOURCE)
        control, init_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        on_failure.push(control)
        with init_end, io.FileIO(os.pidfd_open(os.getpid()), "rb") as owner:
            command = bubblewrap.init_command(str(library), init_end.fileno(), owner.fileno(), preload=preload)
            process = _start_process(command, [init_end.fileno(), owner.fileno()])
        pidfd = os.pidfd_open(process.pid)
        box = Box(folder.name, process, process.pid, pidfd, control, str(workdir), folder=folder)
        on_failure.callback(box.close)
        box.wait_ready()
        on_failure.pop_all()
    return box


def _start_process(command: list[str], descriptors: list[int]) -> "subprocess.Popen[bytes]":
    """Start a process that inherits only these descriptors, and no environment variables."""
    return subprocess.Popen(
        command,
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    )


def find_bwrap() -> str | None:
    """Return the path of bubblewrap; None if it is not installed."""
    return shutil.which("bwrap")


def can_map_users() -> bool:
    """Return whether a box can get its own host user id: this process must be root and have the ids of boxes."""
    if os.geteuid() != 0:
        return False
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    end = _FIRST_HOST_USER + _HOST_USERS
    return any(first <= _FIRST_HOST_USER and end <= first + count for first, _, count in ranges)


def _init_pid(info_pipe: io.FileIO, process: "subprocess.Popen[bytes]") -> int:
    """Return the host pid of the init process, from the JSON that bwrap writes to its info pipe."""
    deadline = time.monotonic() + START_TIMEOUT_S
    info = b""
    while b"}" not in info:
        is_ready = _is_readable(info_pipe.fileno(), deadline - time.monotonic())
        chunk = info_pipe.read(_MESSAGE_BYTES) if is_ready else b""
        if not chunk:
            raise SandboxCreateError(_kill_and_read_stderr(process), where="bubblewrap")
        info += chunk
    return int(json.loads(info)["child-pid"])


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until a descriptor is readable, which a process descriptor is after its process exits; False on timeout."""
    poll = select.poll()  # select.select does not support descriptors above 1023, which a busy server has
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _kill_and_read_stderr(process: "subprocess.Popen[bytes]") -> str:
    """Kill a process and return the last three lines of its stderr, for an error message."""
    _kill_group(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)
    assert process.stderr is not None
    output = os.read(process.stderr.fileno(), _MESSAGE_BYTES)
    lines = output.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or f"exited with status {process.returncode}"


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill bwrap, and also its child if bwrap has not released the child: until then they share a process group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _kill_descendants(pid: int) -> None:
    """Kill the descendants of a process that adopts orphans, repeatedly until none is left, for a limited time."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        descendants = [each for each in process_tree(pid) if each != pid and start_ticks(each)]  # without zombies
        if not descendants:
            return
        for descendant in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(descendant, signal.SIGKILL)


def _map_users(pid: int) -> None:
    """Map the box's user to an unused host user, and root (as which the init process starts) to the host's root."""
    host_user = _FIRST_HOST_USER + secrets.randbelow(_HOST_USERS)
    mapping = f"0 0 1\n{bubblewrap.BOX_USER} {host_user} 1\n"
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(mapping, encoding="ascii")


def _pipe(child_files: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Open a pipe as file objects: closing one twice is harmless, even if its number now belongs to another file."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    return child_files.enter_context(io.FileIO(read_end, "rb")), child_files.enter_context(io.FileIO(write_end, "wb"))


@contextlib.contextmanager
def sealed_file(content: bytes) -> Iterator[int]:
    """Open a read-only file in memory with this content; yield its descriptor."""
    with os.fdopen(os.memfd_create("sealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as file:
        file.write(content)
        file.seek(0)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        yield file.fileno()
