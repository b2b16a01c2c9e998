"""One Python session for each rollout: opened by its first call, closed by its verdict or when nobody comes back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from nemo_gym.errors import EnvFailed
from nemo_gym.sandbox.python import PythonResult, PythonSession
from nemo_gym.sandbox.spec import SandboxError


@dataclass
class Workspace:
    """The Python of one rollout. Calls that come at the same time run one after the other."""

    session: PythonSession
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0
    failure: str | None = None
    """What the sandbox itself failed with: from then on nothing the model says can be graded."""
    idle: asyncio.TimerHandle | None = None


class Workspaces:
    """Workspaces by session id, at most `most` at a time."""

    def __init__(self, open_session: Callable[[], PythonSession], *, idle_seconds: float, most: int) -> None:
        self._open_session = open_session
        self._idle_seconds = idle_seconds
        self._most = most
        self._open: dict[str, Workspace] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def execute(self, name: str, code: str, timeout_s: float) -> tuple[PythonResult, bool]:
        """Run code in the workspace of that name; also whether the names of earlier calls were lost on the way.

        Raises:
            EnvFailed: the sandbox failed, or there are too many workspaces.
        """
        workspace = self._workspace(name)
        self._stop_clock(workspace)
        try:
            async with workspace.turn:
                return await self._run(workspace, code, timeout_s)
        finally:
            self._start_clock(name, workspace)

    async def _run(self, workspace: Workspace, code: str, timeout_s: float) -> tuple[PythonResult, bool]:
        before = workspace.session.generation
        try:
            ran = await workspace.session.execute(code, timeout_s=timeout_s)
        except SandboxError as problem:
            workspace.failure = str(problem)
            raise EnvFailed(f"the sandbox failed: {problem}", fix="gym doctor") from problem
        workspace.calls += 1
        if ran.kind == "sandbox":
            workspace.failure = ran.stderr[-500:] or "the sandbox failed"
            raise EnvFailed(f"the sandbox failed: {workspace.failure}", fix="gym doctor")
        return ran, workspace.session.generation != before

    def _workspace(self, name: str) -> Workspace:
        if name not in self._open:
            if len(self._open) >= self._most:
                raise EnvFailed(f"{self._most} Python sessions are open already", fix="raise `max_sessions`")
            self._open[name] = Workspace(self._open_session())
        return self._open[name]

    def _start_clock(self, name: str, workspace: Workspace) -> None:
        self._stop_clock(workspace)
        if self._open.get(name) is workspace:
            loop = asyncio.get_running_loop()
            workspace.idle = loop.call_later(self._idle_seconds, self._left_alone, name, workspace)

    def _stop_clock(self, workspace: Workspace) -> None:
        if workspace.idle is not None:
            workspace.idle.cancel()
            workspace.idle = None

    def _left_alone(self, name: str, workspace: Workspace) -> None:
        if self._open.get(name) is workspace and not workspace.turn.locked():
            task = asyncio.get_running_loop().create_task(self._ended(name))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _ended(self, name: str) -> None:
        await self.close(name)

    async def close(self, name: str) -> Workspace | None:
        """End the workspace and return what is known about it; None if there was none."""
        workspace = self._open.pop(name, None)
        if workspace is not None:
            self._stop_clock(workspace)
            await workspace.session.aclose()
        return workspace

    async def aclose(self) -> None:
        """End all of them."""
        for name in list(self._open):
            await self.close(name)
        await asyncio.gather(*self._closing)
