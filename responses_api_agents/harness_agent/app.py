"""Harness agent: run any program as an agent, in a sandbox, and account for every model call.

A rollout is one start of the program. Its box has a fresh HOME, the workspace of the row, and no network except a
gateway to the model server. The program's exit status decides nothing: the workspace, the final text and the
conversation that the model calls show are verified.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field, PrivateAttr

from nemo_gym.authoring.episode_agent import (
    EpisodeAgent,
    EpisodeAgentConfig,
    EpisodeRunRequest,
    EpisodeSession,
    EpisodeVerifyResponse,
    verify_request,
)
from nemo_gym.base_responses_api_agent import Body, episode_signals, open_conversation
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import AgentFailed, ConfigError, ModelFailed
from nemo_gym.keys import MCP_METADATA_KEY
from nemo_gym.launch.programs import Programs
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.sandbox import AsyncSandbox, SandboxExecResult
from nemo_gym.sandbox.config import resolve_provider_config
from nemo_gym.sandbox.programs import (
    SOCKET_FOLDER,
    WORKDIR,
    program_path,
    program_spec,
    require_local,
    with_forwarded_ports,
)
from nemo_gym.sandbox.providers.local import probe
from nemo_gym.sandbox.providers.local.provider import LocalProvider
from nemo_gym.sandbox.providers.registry import create_provider
from nemo_gym.sandbox.spec import SandboxError, SandboxErrorKind
from nemo_gym.sandbox.workspaces import IGNORED, Workspace, WorkspaceChanges, download_snapshot
from nemo_gym.server_utils import get_first_server_config_dict, get_response_json
from responses_api_agents.harness_agent.answer import build_response, last_characters, prompt_text
from responses_api_agents.harness_agent.gateway import MCP_PATH, Gateway
from responses_api_agents.harness_agent.harness import (
    SCRIPTS_FOLDER,
    Harness,
    check_start,
    installed_folder,
    node_folder,
    prepare_start,
    read_final_text,
)

PORT = 8080
BASE_URL = f"http://127.0.0.1:{PORT}"
KEY = "no-key"
"""The API key that programs get; the gateway removes it."""
HOME, FILES, TASK_FILE, ANSWER = f"{WORKDIR}/home", f"{WORKDIR}/workspace", f"{WORKDIR}/task.txt", f"{WORKDIR}/answer"
SCRIPTS = "/run/gym/scripts"
WORKSPACE_KEY = "workspace"
CHANGES_KEY = "workspace_changes"
HARNESS_KEY = "harness"
_SETUP_OUTPUT = 2000
_TAIL = 4000
"""Characters of the output of a program in the record of its rollout."""
_FILE_SECONDS = 60.0
_TTL_MARGIN = 600.0
_LAST_EXIT_STATUS = 128
"""Greater ones are signals."""


class HarnessAgentConfig(EpisodeAgentConfig):
    harness: Harness
    """The program."""
    programs: Programs = Programs()
    """The packages with the program; `gym env prefetch` installs them."""
    install_folder: str | None = None
    """A folder with `node_modules` or `venv` that has the packages, instead of the shared one."""
    sandbox: str | dict[str, Any] | None = None
    """A sandbox block of the provider `local`: its name or the block itself."""
    timeout_s: float = Field(default=1800.0, gt=0)
    """Wall time of the program; a rollout in which it is over ends as the limit `time`."""
    memory_mib: int = Field(default=3072, ge=64)
    """Memory of the program and its tools, including the files in the box."""
    disk_mib: int = Field(default=1024, ge=16)
    processes: int = Field(default=512, ge=8)
    max_output_bytes: int = Field(default=16 << 20, ge=1024)
    """Output of the program; more ends it."""
    max_concurrent: int = Field(default=32, ge=1)
    """Programs that run at the same time; other rollouts wait."""
    context_tokens: int = Field(default=32768, ge=1)
    """Size of the model's context, for programs that want to know it."""
    answer_tokens: int = Field(default=4096, ge=1)
    max_turns: int = Field(default=100, ge=1)
    """For programs that limit their turns themselves."""
    workspace_folder: str | None = None
    """The folder with the archives and git bundles of rows; by default, those in which components are searched."""
    max_workspace_bytes: int = Field(default=64 << 20, ge=1)
    """Size of the workspace, and of its changes in the request to the verifier."""
    ignored_files: list[str] = list(IGNORED)
    """Names of files and folders that are no changes of the workspace."""


class HarnessRunRequest(EpisodeRunRequest):
    workspace: Workspace | None = None


@dataclass
class ProgramRun:
    """What is known of one start of the program."""

    gateway: Gateway
    result: SandboxExecResult = field(default_factory=SandboxExecResult)
    started_at: float = 0.0
    """When the program was started, by the monotonic clock."""
    seconds: float = 0.0
    final_text: str | None = None
    changes: WorkspaceChanges | None = None
    check: dict[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the facts for the record of the rollout."""
        conversations = self.gateway.conversations
        main = conversations.main()
        first_call = self.gateway.first_call_at
        return {
            "seconds": round(self.seconds, 3),
            "first_call_seconds": None if first_call is None else round(first_call - self.started_at, 3),
            "exit_status": self.result.return_code,
            "error_type": self.result.error_type,
            "peak_memory_mib": self.result.detail.peak_memory_mib if self.result.detail else None,
            "model_calls": self.gateway.calls,
            "answered_model_calls": self.gateway.answered_calls,
            "unread_model_calls": conversations.unread_calls,
            "other_traces": [trace.describe() for trace in conversations.traces if trace is not main],
            "stdout": last_characters(self.result.stdout, _TAIL),
            "stderr": last_characters(self.result.stderr, _TAIL),
            **({"check": self.check} if self.check is not None else {}),
        }


class HarnessAgent(EpisodeAgent):
    HOSTING = "cell"

    config: HarnessAgentConfig
    _provider: LocalProvider | None = PrivateAttr(default=None)
    _installed: Path | None = PrivateAttr(default=None)
    _slots: asyncio.Semaphore = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Check that programs can be isolated and that this one is installed.

        Raises:
            SandboxUnsupportedError: this machine cannot isolate programs.
            ConfigError: the program is not installed, or the sandbox is not local.
        """
        super().model_post_init(context)
        probe().require()
        self._slots = asyncio.Semaphore(self.config.max_concurrent)
        if self.config.install_folder is not None:
            self._installed = Path(self.config.install_folder).resolve()
            if not self._installed.is_dir():
                raise ConfigError(f"{self._installed} is no folder", where=f"{self.config.name}.install_folder")
        else:
            cache = self.server_client.global_config_dict.get("cache_dir")
            self._installed = installed_folder(self.config.programs, cache, self.config.name)

    def setup_webserver(self) -> FastAPI:
        """Build the application; its lifespan kills every box at its end."""
        app = super().setup_webserver()
        inner_lifespan = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan_with_boxes(application: Any) -> AsyncIterator[Any]:
            try:
                async with inner_lifespan(application) as state:
                    yield state
            finally:
                await self.aclose()

        app.router.lifespan_context = lifespan_with_boxes
        return app

    async def aclose(self) -> None:
        """Kill every box. Idempotent."""
        provider, self._provider = self._provider, None
        if provider is not None:
            await provider.aclose()

    async def run(self, request: Request, body: HarnessRunRequest) -> EpisodeVerifyResponse:
        """Seed the session, run the program and verify what it left."""
        session = EpisodeSession(dict(request.cookies))
        try:
            reply = await self._reply(self.config.resources_server.name, "/seed_session", body, session)
            session.needs_close = episode_signals(reply).close
            params = await open_conversation(reply, body.responses_create_params)
            body = body.model_copy(update={"responses_create_params": params})
            metadata = (await get_response_json(reply)).get(MCP_METADATA_KEY)
            if params.tools and body.workspace is None:
                self._require_tools(offers_mcp=metadata is not None)

            program = await self._run_program(params, body.workspace or Workspace(), metadata)
            session.limit = self._limit_of(program)
            if not session.limit:
                self._require_answers(program)
            response = build_response(params, program.gateway.conversations.main(), program.final_text)
            extra = {HARNESS_KEY: program.describe()}
            if program.changes is not None:
                extra[CHANGES_KEY] = program.changes.as_dict()
            verified = verify_request(body, response).model_copy(update=extra)
            result = await self.verify_episode(verified, session)
            missing = {name: value for name, value in extra.items() if name not in (result.model_extra or {})}
            return result.model_copy(update=missing)
        finally:
            self.close_unverified(session)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """Run the program in an empty workspace, without an environment, and return its conversation."""
        program = await self._run_program(body, Workspace(), None)
        self._require_answers(program)
        return build_response(body, program.gateway.conversations.main(), program.final_text)

    def _require_tools(self, *, offers_mcp: bool) -> None:
        """Check that the program can call the tools of the environment.

        Raises:
            AgentFailed: it cannot, so that no answer of it would be worth a reward.
        """
        server = self.config.resources_server.name
        if not offers_mcp:
            fix = f"expose_tools_over_mcp: true in the block of {server}"
            raise AgentFailed(f"the program cannot call the tools of {server}", where=self.config.name, fix=fix)
        if self.config.harness.mcp is None:
            problem = f"the program cannot call the tools of {server}: its description has no `mcp`"
            raise AgentFailed(problem, where=self.config.name, fix="use another agent")

    def _limit_of(self, program: ProgramRun) -> str | None:
        """Return the limit of this agent that ended the program; None without one."""
        if program.gateway.reached_limit:
            return "steps"
        return "time" if program.result.error_type == SandboxErrorKind.TIMEOUT else None

    def _require_answers(self, program: ProgramRun) -> None:
        """Check that the program ended by itself and that the model answered it.

        Raises:
            AgentFailed: the program was killed, or called no model.
            ModelFailed: every call of the program failed.
        """
        kind, name = kind_of_kill(program.result), self.config.name
        output = last_characters(program.result.stderr.strip() or program.result.stdout.strip(), _SETUP_OUTPUT)
        if kind is not None:
            raise AgentFailed(f"the program was ended by the sandbox ({kind}); its last output: {output!r}", where=name)
        if program.gateway.answered_calls:
            return
        status = f"it exited with status {program.result.return_code}; its last output: {output!r}"
        if program.gateway.calls:
            problem = f"no model call of the program succeeded (the last: {program.gateway.last_error}); {status}"
            raise ModelFailed(problem, where=name)
        raise AgentFailed(f"the program called no model; {status}", where=name)

    async def _run_program(
        self, params: NeMoGymResponseCreateParamsNonStreaming, workspace: Workspace, mcp: Mapping[str, Any] | None
    ) -> ProgramRun:
        """Run the program once in a new box, which is started when the rollout has a slot."""
        async with self._slots:
            return await self._run_in_box(params, workspace, mcp)

    async def _run_in_box(
        self, params: NeMoGymResponseCreateParamsNonStreaming, workspace: Workspace, mcp: Mapping[str, Any] | None
    ) -> ProgramRun:
        with tempfile.TemporaryDirectory(prefix="gym-harness-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            async with AsyncExitStack() as stack:
                gateway = self._gateway(mcp)
                stack.push_async_callback(gateway.close)
                await gateway.start(folder / "model.sock")
                await asyncio.to_thread(_write_hosts, folder / "hosts")
                sandbox = AsyncSandbox(self._local_provider(), self._spec(folder, workspace), owns_provider=False)
                await stack.enter_async_context(sandbox)
                run = ProgramRun(gateway)
                before = await self._prepare_workspace(sandbox, folder, workspace)
                await self._execute(sandbox, run, prompt_text(params), has_mcp=mcp is not None)
                await self._read_results(sandbox, run, workspace, before)
                return run

    def _gateway(self, mcp: Mapping[str, Any] | None) -> Gateway:
        root = self.resolve_model_base_url(self.config.model_server.name, version_path="")
        if mcp is None or self.config.harness.mcp is None:
            return Gateway(root, self.config.max_steps)
        server = get_first_server_config_dict(self.server_client.global_config_dict, self.config.resources_server.name)
        url = self.server_client._build_server_base_url(server) + str(mcp["url_path"])
        return Gateway(root, self.config.max_steps, url, dict(mcp["headers"]))

    def _local_provider(self) -> LocalProvider:
        if self._provider is None:
            ref, blocks = self.config.sandbox, as_dict(self.server_client.global_config_dict)
            block = {"local": {}} if ref is None else resolve_provider_config(ref, blocks)
            require_local(block)
            limits = {"max_running": self.config.max_concurrent, "max_output_bytes": self.config.max_output_bytes}
            settings = {**limits, **block["local"]}
            provider = create_provider({"local": settings})
            assert isinstance(provider, LocalProvider)
            self._provider = provider
        return self._provider

    def _spec(self, folder: Path, workspace: Workspace) -> Any:
        """Return the description of the box: its mounts, limits and search path."""
        mounts: dict[str, str | Path] = {
            f"{SOCKET_FOLDER}/model.sock": folder / "model.sock",
            "/etc/hosts": folder / "hosts",
            SCRIPTS: SCRIPTS_FOLDER,
        }
        search: list[Path] = []
        if self._installed is not None:
            mounts[str(self._installed)] = self._installed
            search = self.config.programs.search_folders(self._installed)
        node = node_folder() if self.config.programs.npm else None
        if node is not None:
            mounts[str(node)] = node
            search.append(node / "bin")
        config = self.config
        seconds = config.timeout_s + workspace.setup_timeout_s + workspace.check_timeout_s
        return program_spec(
            mounts=mounts,
            env={"HOME": HOME, "PATH": program_path(search), "SHELL": "/bin/sh", "TERM": "dumb", "LANG": "C.UTF-8"},
            memory_mib=config.memory_mib,
            disk_mib=config.disk_mib,
            processes=config.processes,
            ttl_s=seconds + _TTL_MARGIN,
        )

    async def _prepare_workspace(self, sandbox: AsyncSandbox, folder: Path, workspace: Workspace) -> dict[str, bytes]:
        """Write the workspace of the row into the box and run its set-up; return the files that it then has.

        Raises:
            ConfigError: a file of the row is missing.
            AgentFailed: the set-up command failed.
        """
        sources = Path(self.config.workspace_folder) if self.config.workspace_folder else None
        upload = folder / "upload"
        has_files = await asyncio.to_thread(workspace.write, upload, sources, self.config.disk_mib << 20)
        bundle = workspace.bundle_path(sources)
        steps = [f"mkdir -p {HOME}"]
        if bundle is not None:
            await sandbox.upload(bundle, f"{WORKDIR}/repository.bundle")
            clone = f"git clone -q {WORKDIR}/repository.bundle {FILES} && rm {WORKDIR}/repository.bundle"
            steps.append(f"{clone} && git -C {FILES} checkout -q {workspace.revision}" if workspace.revision else clone)
        steps.append(f"mkdir -p {FILES}")
        await self._run_step(sandbox, " && ".join(steps), _FILE_SECONDS, WORKDIR)
        if has_files:
            await sandbox.upload(upload, FILES)
        if workspace.setup:
            await self._run_step(sandbox, workspace.setup, workspace.setup_timeout_s, FILES)
        return await self._download_files(sandbox)

    async def _run_step(self, sandbox: AsyncSandbox, command: str, seconds: float, cwd: str) -> None:
        result = await sandbox.exec(command, cwd=cwd, timeout_s=seconds)
        if result.return_code or result.error_type:
            output = last_characters((result.stderr or result.stdout).strip(), _SETUP_OUTPUT)
            end = result.error_type or f"status {result.return_code}"
            raise AgentFailed(f"the workspace cannot be prepared ({end}): {output!r}", where=self.config.name)

    async def _download_files(self, sandbox: AsyncSandbox) -> dict[str, bytes]:
        """Return the files of the workspace in the box."""
        config = self.config
        return await download_snapshot(
            sandbox, FILES, ignored=config.ignored_files, max_bytes=config.max_workspace_bytes
        )

    async def _execute(self, sandbox: AsyncSandbox, run: ProgramRun, prompt: str, *, has_mcp: bool) -> None:
        """Start the program and wait for its end."""
        config = self.config
        values = {
            "prompt": prompt,
            "prompt_json": json.dumps(prompt),
            "prompt_file": TASK_FILE,
            "base": f"{BASE_URL}/v1",
            "root": BASE_URL,
            "key": KEY,
            "model": "model",
            "mcp_url": f"{BASE_URL}{MCP_PATH}",
            "workspace": FILES,
            "home": HOME,
            "scripts": SCRIPTS,
            "context_tokens": str(config.context_tokens),
            "answer_tokens": str(config.answer_tokens),
            "max_turns": str(config.max_turns),
        }
        start = prepare_start(config.harness, values, has_mcp=has_mcp)
        check_start(start, config.name)
        files = {f"{HOME}/{name}": content for name, content in start.files.items()}
        files |= {TASK_FILE: prompt, f"{WORKDIR}/stdin.txt": start.stdin}
        await _upload_texts(sandbox, files)
        with_stdin = ["sh", "-c", f'exec "$@" <{WORKDIR}/stdin.txt', "sh", *start.command]
        command = with_forwarded_ports(with_stdin, {PORT: f"{SOCKET_FOLDER}/model.sock"})
        run.started_at = time.monotonic()
        run.result = await sandbox.exec(command, cwd=FILES, env=start.env, timeout_s=config.timeout_s)
        run.seconds = time.monotonic() - run.started_at

    async def _read_results(
        self, sandbox: AsyncSandbox, run: ProgramRun, workspace: Workspace, before: dict[str, bytes]
    ) -> None:
        """Read the final text and the workspace, and run the check of the row."""
        rule = self.config.harness.final_text
        if rule is not None:
            content = None
            if rule.file:
                path = rule.file.replace("{workspace}", FILES).replace("{home}", HOME)
                path = path if path.startswith("/") else f"{HOME}/{path}"
                command = ["sh", "-c", 'test -f "$1" && head -c 1000000 "$1"', "sh", path]  # a pipe would block
                content = (await sandbox.exec(command, timeout_s=_FILE_SECONDS)).stdout
            run.final_text = read_final_text(rule, run.result.stdout, content)
        try:
            after = await self._download_files(sandbox)
        except SandboxError as error:
            problem = f"the files that the program left cannot be read: {error}"
            raise AgentFailed(problem, where=self.config.name) from error
        run.changes = await asyncio.to_thread(WorkspaceChanges.between, before, after)
        if workspace.check:
            result = await sandbox.exec(workspace.check, cwd=FILES, timeout_s=workspace.check_timeout_s)
            output = last_characters(result.stdout + result.stderr, _TAIL)
            run.check = {"status": result.return_code, "error_type": result.error_type, "output": output}


def kind_of_kill(result: SandboxExecResult) -> SandboxErrorKind | None:
    """Return why the sandbox ended a program; None if it ended by itself, with any status and any last words."""
    is_enforced = result.error_type in (SandboxErrorKind.TIMEOUT, SandboxErrorKind.OUTPUT, SandboxErrorKind.SANDBOX)
    return result.error_type if is_enforced or result.return_code > _LAST_EXIT_STATUS else None


def _write_hosts(path: Path) -> None:
    """Write the file `/etc/hosts` of a box."""
    path.write_text("127.0.0.1 localhost\n::1 localhost\n")
    path.chmod(0o644)


def _write_texts(folder: Path, files: Mapping[str, str]) -> None:
    for path, content in files.items():
        target = folder / path.removeprefix(f"{WORKDIR}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


async def _upload_texts(sandbox: AsyncSandbox, files: Mapping[str, str]) -> None:
    """Write texts into a box, by absolute path."""
    with tempfile.TemporaryDirectory(prefix="gym-harness-files-") as name:
        await asyncio.to_thread(_write_texts, Path(name), files)
        await sandbox.upload(name, WORKDIR)


if __name__ == "__main__":
    HarnessAgent.run_webserver()
