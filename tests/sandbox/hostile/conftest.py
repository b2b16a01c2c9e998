"""A runner for hostile programs that checks after each one that no process or group is left."""

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from nemo_gym.sandbox import SandboxResources, SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider, probe
from nemo_gym.sandbox.providers.local.box import find_bwrap, launch
from nemo_gym.sandbox.spec import SandboxExecResult

GONE_S = 20.0
"""Longest time a loaded machine may take to remove a box."""


@dataclass
class Traces:
    """The places where parts of a box could be left."""

    namespace: int
    """An open file: as long as it is, no other namespace gets the same number."""
    groups: list[Path]

    @classmethod
    def of(cls, box) -> "Traces":
        namespace = os.open(f"/proc/{box.pid}/ns/pid", os.O_RDONLY)
        return cls(namespace, [] if box.group is None else list(box.group.folders.values()))

    def remaining(self) -> list[str]:
        """Return the processes and groups of the box that still exist."""
        left = [str(group) for group in self.groups if group.exists()]
        inode = os.fstat(self.namespace).st_ino
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(process / "ns" / "pid").st_ino == inode:
                    left.append(str(process))
            except OSError:
                continue
        return left

    def assert_gone(self) -> None:
        deadline = time.monotonic() + GONE_S
        while self.remaining() and time.monotonic() < deadline:
            time.sleep(0.01)
        left = self.remaining()
        os.close(self.namespace)
        assert left == []


class Hostile:
    """Runs programs on a separate event loop, all with the same small limits."""

    def __init__(self, provider=LocalProvider) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.provider = provider(warm=1, memory_mib=64, disk_mib=16, processes=24, max_output_bytes=1 << 18)

    def wait(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def run(self, code: str, *, timeout_s=20.0, cpu_s=None, stdin=b"", argv=None, files=None) -> SandboxExecResult:
        """Run a program, check that nothing of it is left, and return its result."""
        order = {"action": "program", "code": code} if argv is None else {"action": "command", "argv": argv}
        result, traces = self.wait(
            self._run({**order, "files": files or {}}, timeout_s=timeout_s, cpu_s=cpu_s, stdin=stdin)
        )
        traces.assert_gone()
        return result

    async def _run(self, order, **options):
        spec = SandboxSpec(resources=SandboxResources(memory_mib=64))
        handle = await self.provider.create(spec)
        traces = Traces.of(handle.raw.box)
        try:
            outcome = await self.provider.run(handle, order, **options)
        finally:
            await self.provider.close(handle)
        await (await self.provider.open()).wait_until_full()  # other tests of this process count threads and files
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
    runner = Hostile()
    yield runner
    runner.close()


class ProviderWithoutGroups(LocalProvider):
    """The provider of an ordinary user, who may not create control groups."""

    async def _prepare_launcher(self):
        return partial(launch, find_bwrap() or "", None)


@pytest.fixture(scope="session")
def hostile_without_groups(_isolation):
    runner = Hostile(ProviderWithoutGroups)
    yield runner
    runner.close()


@pytest.fixture
def traces_of():
    return Traces.of
