"""A network with loopback only and a process namespace, so that no client reaches a host or outlives the command."""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARKER = "GYM_CLIENTS_ISOLATED"
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING

TELEMETRY_OFF = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_PURE": "1",
    "PI_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OTEL_SDK_DISABLED": "true",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""Variables that keep clients from calling other hosts, for machines without network namespaces."""


def restart_isolated() -> int | None:
    """Run this command again in new network and process namespaces; None if it is isolated or that is impossible."""
    if os.environ.get(MARKER):
        _enable_loopback()
        return None
    unshare = shutil.which("unshare")
    words = [unshare or "", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid():
        words.insert(1, "--map-root-user")
    if unshare is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        sys.stderr.write("namespaces are not available: clients run with proxies that do not answer\n")
        return None
    command = [*words, sys.executable, "-m", "tools.clients", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, MARKER: "1"}, check=False).returncode


def _enable_loopback() -> None:
    with socket.socket() as channel:
        fcntl.ioctl(channel, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))


def offline_variables() -> dict[str, str]:
    """Return the variables of a client: no telemetry and, without a network namespace, a proxy that does not answer."""
    if os.environ.get(MARKER):
        return TELEMETRY_OFF
    closed = "http://127.0.0.1:9"
    return {**TELEMETRY_OFF, **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), closed)}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a client and reap the client."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def processes_in(folder: Path, *, seconds: float = 3.0) -> list[int]:
    """Return the processes whose working folder is below `folder`, after waiting for them to end.

    Clients start tools in their workspace, in other sessions than their own.
    """
    deadline = time.monotonic() + seconds
    while (alive := _with_working_folder(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _with_working_folder(folder: Path) -> list[int]:
    alive = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                working_folder = (entry / "cwd").readlink()
            except OSError:
                continue
            if working_folder.is_relative_to(folder):
                alive.append(int(entry.name))
    return alive
