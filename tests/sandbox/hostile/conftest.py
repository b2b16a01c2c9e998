"""A runner for programs that mean harm, and a look round after each: is anything of it still there?"""

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_gym.sandbox import SandboxResources, SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider, probe
from nemo_gym.sandbox.spec import SandboxExecResult

GONE_S = 20.0
"""A loaded machine may take a moment to take a box apart; it is given more than that."""


@dataclass
class Traces:
    """Where something of a box could be left."""

    namespace: int
    """An open file: as long as it is, no other namespace gets the same number."""
    groups: list[Path]

    @classmethod
    def of(cls, box) -> "Traces":
        namespace = os.open(f"/proc/{box.pid}/ns/pid", os.O_RDONLY)
        return cls(namespace, [] if box.group is None else list(box.group.folders.values()))

    def found(self) -> list[str]:
        """Processes of the box's namespace and groups that are still there."""
        left = [str(group) for group in self.groups if group.exists()]
        wanted = os.fstat(self.namespace).st_ino
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(process / "ns" / "pid").st_ino == wanted:
                    left.append(str(process))
            except OSError:
                continue
        return left

    def assert_gone(self) -> None:
        until = time.monotonic() + GONE_S
        while self.found() and time.monotonic() < until:
            time.sleep(0.01)
        left = self.found()
        os.close(self.namespace)
        assert left == []


class Hostile:
    """Runs programs on a loop of its own, all with the same small bounds."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.provider = LocalProvider(warm=1, memory_mib=64, disk_mib=16, processes=24, max_output_bytes=1 << 18)

    def wait(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def run(self, code: str, *, timeout_s=20.0, cpu_s=None, stdin=b"", argv=None, files=None) -> SandboxExecResult:
        """What became of the program; by then nothing of it may be left."""
        words = {"task": "program", "code": code} if argv is None else {"task": "command", "argv": argv}
        result, traces = self.wait(
            self._run({**words, "files": files or {}}, timeout_s=timeout_s, cpu_s=cpu_s, stdin=stdin)
        )
        traces.assert_gone()
        return result

    async def _run(self, words, **options):
        spec = SandboxSpec(resources=SandboxResources(memory_mib=64))
        handle = await self.provider.create(spec)
        traces = Traces.of(handle.raw.box)
        try:
            outcome = await self.provider.run(handle, words, **options)
        finally:
            await self.provider.close(handle)
        await (await self.provider.open()).full()  # other tests of this process count threads and files
        return outcome.result, traces

    def close(self) -> None:
        self.wait(self.provider.aclose())
        self.wait(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="session", autouse=True)
def _isolation():
    if not probe().available:
        pytest.skip(f"no isolation here: {probe().problem}")


@pytest.fixture(scope="session")
def hostile(_isolation):
    made = Hostile()
    yield made
    made.close()


@pytest.fixture
def traces_of():
    return Traces.of
