"""One Python session for each rollout: opened by its first call, closed by its verdict or after idle time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from nemo_gym.errors import EnvFailed
from nemo_gym.sandbox.python import PythonResult, PythonSession
from nemo_gym.sandbox.spec import SandboxError


@dataclass
class Workspace:
    """The Python session of one rollout; concurrent calls run one after the other."""

    session: PythonSession
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0
    failure: str | None = None
    """The failure of the sandbox, if any; the rollout can no longer be graded."""
    idle_timer: asyncio.TimerHandle | None = None


class Workspaces:
    """Workspaces by session id, at most `most` at a time."""

    def __init__(self, open_session: Callable[[], PythonSession], *, idle_seconds: float, most: int) -> None:
        self._open_session = open_session
        self._idle_seconds = idle_seconds
        self._most = most
        self._open: dict[str, Workspace] = {}
        self._closing: set[asyncio.Task[Workspace | None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def execute(self, name: str, code: str, timeout_s: float) -> tuple[PythonResult, bool]:
        """Run code in a workspace; return the result, and True if the names of earlier calls were lost.

        Raises:
            EnvFailed: the sandbox failed, or too many workspaces are open.
        """
        workspace = self._workspace(name)
        self._stop_timer(workspace)
        try:
            async with workspace.turn:
                return await self._run(workspace, code, timeout_s)
        finally:
            self._start_timer(name, workspace)

    async def _run(self, workspace: Workspace, code: str, timeout_s: float) -> tuple[PythonResult, bool]:
        before = workspace.session.generation
        try:
            result = await workspace.session.execute(code, timeout_s=timeout_s)
        except SandboxError as problem:
            workspace.failure = str(problem)
            raise EnvFailed(f"the sandbox failed: {problem}", fix="gym doctor") from problem
        workspace.calls += 1
        if result.kind == "sandbox":
            workspace.failure = result.stderr[-500:] or "the sandbox failed"
            raise EnvFailed(f"the sandbox failed: {workspace.failure}", fix="gym doctor")
        return result, workspace.session.generation != before

    def _workspace(self, name: str) -> Workspace:
        if name not in self._open:
            if len(self._open) >= self._most:
                raise EnvFailed(f"{self._most} Python sessions are open already", fix="raise `max_sessions`")
            self._open[name] = Workspace(self._open_session())
        return self._open[name]

    def _start_timer(self, name: str, workspace: Workspace) -> None:
        self._stop_timer(workspace)
        if self._open.get(name) is workspace:
            loop = asyncio.get_running_loop()
            workspace.idle_timer = loop.call_later(self._idle_seconds, self._close_if_idle, name, workspace)

    def _stop_timer(self, workspace: Workspace) -> None:
        if workspace.idle_timer is not None:
            workspace.idle_timer.cancel()
            workspace.idle_timer = None

    def _close_if_idle(self, name: str, workspace: Workspace) -> None:
        if self._open.get(name) is workspace and not workspace.turn.locked():
            task = asyncio.get_running_loop().create_task(self.close(name))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self, name: str) -> Workspace | None:
        """Close a workspace and return it; None if it does not exist."""
        workspace = self._open.pop(name, None)
        if workspace is not None:
            self._stop_timer(workspace)
            await workspace.session.aclose()
        return workspace

    async def aclose(self) -> None:
        """Close all workspaces."""
        for name in list(self._open):
            await self.close(name)
        await asyncio.gather(*self._closing)
