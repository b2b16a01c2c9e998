"""A server under audit: built from its folder's configuration, called in process over its real routes."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import PrivateAttr, ValidationError

from nemo_gym.authoring.model_replies import Reply, Row, ToolCaller, build_response, prompt_texts, text_response
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.catalog.components import load_tree
from nemo_gym.config.instances import ServerInstance, instances_of
from nemo_gym.config.omegaconf_adapter import as_plain_value
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_JUDGE_ERROR_KEY, OPENING_KEY
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.serve.addresses import validate_config
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process
from nemo_gym.wire.episode import Opening, apply_opening

PORT = 1  # never opened: servers are called in process
EPISODE_TIMEOUT_SECONDS = 120.0
PlayTools = Callable[[Row, Reply, ToolCaller], Any]
"""The `act` of an audit.py: makes the tool calls of an episode before `/verify`."""


class ToolFailed(GymError):
    """A tool answered with a server error (5xx), so the episode cannot test the verifier."""


@dataclass(frozen=True)
class AuditReply:
    """The server's answer to one call of an audit."""

    status: int
    body: Any
    seconds: float = 0.0
    problem: str | None = None
    """The reason why `/verify` was not called or did not answer."""

    @property
    def reward(self) -> float | None:
        """The reward; None for errors, failures and rewards that are not finite numbers."""
        if self.status != 200 or not isinstance(self.body, dict) or self.failure:
            return None
        reward = self.body.get("reward")
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
        return float(reward) if is_number else None  # type: ignore[arg-type]

    @property
    def failure(self) -> str | None:
        failure = self.body.get(NG_FAILURE_CLASS_KEY) if isinstance(self.body, dict) else None
        return str(failure) if failure else None

    @property
    def summary(self) -> str:
        """The outcome in a few words: problem, failure, status or reward."""
        if self.problem:
            return self.problem
        if self.failure:
            return " ".join(f"failure {self.failure} {self.body.get(NG_FAILURE_JUDGE_ERROR_KEY) or ''}".split())[:160]
        if self.status != 200:
            return f"status {self.status}" + (f": {str(self.body)[:120]}" if self.status >= 500 else "")
        return "no reward" if self.reward is None else f"reward {self.reward:g}"


class ScriptedJudge(SimpleResponsesAPIModel):
    """A judge model whose answer is computed from the prompt by a function."""

    config: BaseResponsesAPIModelConfig
    _answer: Callable[[str], str] = PrivateAttr(default_factory=lambda: lambda _prompt: "")
    _call_count: int = PrivateAttr(default=0)
    _error: str | None = PrivateAttr(default=None)

    def set_answer(self, answer: Callable[[str], str]) -> None:
        """Set the function that computes the answer to every prompt."""
        self._answer = answer

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        self._call_count += 1
        try:
            text = self._answer("\n\n".join(prompt_texts(body.input)))
        except Exception as error:  # code of the server folder: any exception becomes a finding
            self._error = f"{type(error).__name__}: {error}"
            raise
        # A space, because an empty text would give a response without a message.
        return NeMoGymResponse.model_validate(text_response(text or " "))

    async def chat_completions(self, body: Any = Body()) -> NeMoGymChatCompletion:  # noqa: ARG002
        raise HTTPException(501, "the judge of an audit supports only /v1/responses")


@dataclass
class ServerUnderAudit:
    """A server that is called in process, with its scripted judges."""

    server: SimpleResourcesServer
    app: FastAPI
    url: str
    act: PlayTools | None = None
    judges: list[ScriptedJudge] = field(default_factory=list)

    async def play(self, row: Row, reply: Reply) -> AuditReply:
        """Play one episode in a new session: seed the session, call the tools, verify."""
        return await self._play(row, reply, None)

    async def verify_record(self, record: Row) -> AuditReply:
        """Repeat the tool calls of a stored rollout in a new session and verify it."""
        return await self._play(record, record["response"]["output"], record)

    async def _play(self, row: Row, reply: Reply, record: Row | None) -> AuditReply:
        """Play one episode and verify `record`, or else the row with its opening and the reply.

        A failed seed or tool, or a timeout, becomes `problem`.
        """
        cookies: dict[str, str] = {}
        try:
            async with asyncio.timeout(EPISODE_TIMEOUT_SECONDS):
                seeded = await self._post("/seed_session", row, cookies)
                if seeded.status != 200:
                    return AuditReply(seeded.status, seeded.body, problem=f"/seed_session: status {seeded.status}")
                if self.act is not None:
                    await self.act(row, reply, self._tool_caller(cookies))
                if record is None:
                    row = _with_opening(row, seeded.body)
                    record = {**row, "response": build_response(reply, row)}
                return await self._post("/verify", record, cookies)
        except (ToolFailed, TimeoutError) as problem:
            return AuditReply(0, None, problem=str(problem) or f"no answer within {EPISODE_TIMEOUT_SECONDS:g} s")

    def _tool_caller(self, cookies: dict[str, str]) -> ToolCaller:
        """Return the function by which `act` calls tools in the session of `cookies`."""

        async def call(path: str, body: Any = None) -> Any:
            answer = await self._post(path, {} if body is None else body, cookies)
            if answer.status >= 500:
                raise ToolFailed(f"status {answer.status}: {str(answer.body)[:200]}", where=path)
            return answer.body

        return call

    async def _post(self, path: str, body: Any, cookies: dict[str, str]) -> AuditReply:
        """Post to the server in process, measure the time, and store its cookies in `cookies`."""
        start = time.perf_counter()
        reply = await in_process.dispatch(self.app, "POST", f"{self.url}{path}", json=body, cookies=dict(cookies))
        seconds = time.perf_counter() - start
        cookies.update({name: cookie.value for name, cookie in reply.cookies.items()})
        text = await reply.read()
        try:
            content = json.loads(text)
        except ValueError:
            content = text.decode(errors="replace")
        return AuditReply(reply.status, content, seconds)

    @property
    def judge_calls(self) -> int:
        return sum(judge._call_count for judge in self.judges)

    @property
    def judge_problem(self) -> str | None:
        """The exception that a judge's function raised; None if there was none."""
        return next((judge._error for judge in self.judges if judge._error), None)

    def set_judge(self, answer: Callable[[str], str]) -> None:
        """Set the function that computes the answers of all judges."""
        for judge in self.judges:
            judge.set_answer(answer)


def _with_opening(row: Row, seed_answer: Any) -> Row:
    """Return a row with the messages and tools of the opening, as an agent sends it to `/verify`."""
    opening = seed_answer.get(OPENING_KEY) if isinstance(seed_answer, Mapping) else None
    if not isinstance(opening, Mapping):
        return row
    try:
        params = NeMoGymResponseCreateParamsNonStreaming.model_validate(row.get("responses_create_params"))
    except ValidationError:
        return row  # a malformed row, which the server must refuse
    opened = apply_opening(params, Opening.model_validate(opening))
    return {**row, "responses_create_params": opened.model_dump(mode="json", exclude_unset=True)}


@contextmanager
def scripted_judges(names: Iterable[str], domain: str) -> Iterator[tuple[ServerClient, list[ScriptedJudge]]]:
    """Mount judges in process under the names of model servers; yield a client for them, and the judges."""
    addresses = {name: {"host": f"{name}.{domain}", "port": PORT, "entrypoint": "app.py"} for name in names}
    blocks = {name: {"responses_api_models": {"judge": address}} for name, address in addresses.items()}
    head = BaseServerConfig(host="127.0.0.1", port=PORT)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(blocks))
    judges = []
    try:
        for name, address in addresses.items():
            config = BaseResponsesAPIModelConfig.model_validate({**address, "name": name})
            judges.append(ScriptedJudge(config=config, server_client=client))
            in_process.mount(f"{name}.{domain}", PORT, judges[-1].prepare_webserver({}))
        yield client, judges
    finally:
        for name in addresses:
            in_process.unmount(f"{name}.{domain}", PORT)


@asynccontextmanager
async def serve_for_audit(
    server_class: type[SimpleResourcesServer],
    name: str,
    settings: Mapping[str, Any],
    act: PlayTools | None = None,
    judge: Callable[[str], str] | None = None,
) -> AsyncIterator[ServerUnderAudit]:
    """Start a server in process, with scripted judges in place of the model servers that its settings name.

    Raises:
        ConfigError: the settings are invalid for the server.
    """
    host = f"{name}.audit"
    address = {"host": host, "port": PORT, "name": name}
    with scripted_judges(sorted({ref["name"] for ref in model_refs(settings)}), host) as (client, judges):
        config_class: Any = server_class.model_fields["config"].annotation
        config = validate_config(config_class, {"entrypoint": "app.py", **settings, **address}, instance=name)
        server = server_class(config=config, server_client=client)
        app = server.prepare_webserver({})
        async with app.router.lifespan_context(app):
            running = ServerUnderAudit(server, app, f"http://{host}:{PORT}", act, judges)
            if judge is not None:
                running.set_judge(judge)
            yield running


def model_refs(settings: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every reference to a model server in a configuration."""
    if isinstance(settings, Mapping):
        if settings.get("type") == "responses_api_models" and settings.get("name"):
            yield settings
        for value in settings.values():
            yield from model_refs(value)


def folder_settings(folder: Path) -> dict[str, Any]:
    """Return a server's settings from `configs/<folder>.yaml` or else the first file in `configs`; empty if missing.

    Raises:
        ConfigError: the file cannot be read or resolved.
    """
    named = folder / "configs" / f"{folder.name}.yaml"
    paths = [named] if named.exists() else sorted((folder / "configs").glob("*.yaml"))[:1]
    for path in paths:
        tree = load_tree(path, [folder.parent.parent], strict=False)
        for instance in instances_of(tree, "resources_servers"):
            if instance.implementation == folder.name:
                return _resolve_block(tree, instance, path)
    return {}


def _resolve_block(tree: Mapping[Any, Any], instance: ServerInstance, path: Path) -> dict[str, Any]:
    """Return the settings of an instance with the interpolations resolved."""
    name, server_type, implementation = instance.path
    try:
        return dict(as_plain_value(OmegaConf.create(dict(tree))[name][server_type][implementation]))
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).split("\n", 1)[0], where=str(path), fix="CONFIG in audit.py") from None
