"""A server under audit: built from its folder's configuration, called in process over its real routes."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi import FastAPI, HTTPException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import PrivateAttr, ValidationError

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.config.directives import expand_directives
from nemo_gym.config.load import load_files
from nemo_gym.config.merge import Tree, merge_into
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.environment.audit_replies import Call, Reply, response_of
from nemo_gym.environment.audit_rows import Row
from nemo_gym.environment.verifier_fixture import said
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_JUDGE_ERROR_KEY
from nemo_gym.net import local
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import ServerClient

PORT = 1
LONGEST_CALL = 120.0
CLOSE = 1e-9
Act = Callable[[Row, Reply, Call], Any]


class ToolFailed(GymError):
    """A tool answered with an error of its own (5xx), so nothing can be said about the verdict."""


@dataclass(frozen=True)
class Answer:
    """What the server said to one case."""

    status: int
    body: Any
    seconds: float = 0.0
    problem: str | None = None
    """What went wrong before there was a verdict."""

    @property
    def reward(self) -> float | None:
        """The reward; None where there is none that counts."""
        if self.status != 200 or not isinstance(self.body, dict) or self.failure:
            return None
        reward = self.body.get("reward")
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
        return float(reward) if is_number else None  # type: ignore[arg-type]

    @property
    def failure(self) -> str | None:
        found = self.body.get(NG_FAILURE_CLASS_KEY) if isinstance(self.body, dict) else None
        return str(found) if found else None

    @property
    def found(self) -> str:
        """In a few words."""
        if self.problem:
            return self.problem
        if self.failure:
            return " ".join(f"failure {self.failure} {self.body.get(NG_FAILURE_JUDGE_ERROR_KEY) or ''}".split())[:160]
        if self.status != 200:
            return f"status {self.status}" + (f": {str(self.body)[:120]}" if self.status >= 500 else "")
        return "no reward" if self.reward is None else f"reward {self.reward:g}"


class ScriptedJudge(SimpleResponsesAPIModel):
    """A judge whose answer is a function of the whole prompt."""

    config: BaseResponsesAPIModelConfig
    _answer: Callable[[str], str] = PrivateAttr(default_factory=lambda: _speechless)
    _asked: int = PrivateAttr(default=0)
    _raised: str | None = PrivateAttr(default=None)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        self._asked += 1
        try:
            text = self._answer(prompt_of(body.input))
        except Exception as error:  # a folder's own code: whatever it raises is told
            self._raised = f"{type(error).__name__}: {error}"
            raise
        return NeMoGymResponse.model_validate(said(text or " "))

    async def chat_completions(self, body: Any = Body()) -> NeMoGymChatCompletion:  # noqa: ARG002
        raise HTTPException(501, "the judge of an audit answers /v1/responses")


def _speechless(_prompt: str) -> str:
    return ""


def prompt_of(asked: Any) -> str:
    """All that a model is told, the texts of its input in their order, as `judge` of an audit.py gets it."""
    if isinstance(asked, str):
        return asked
    return "\n\n".join(_content(item if isinstance(item, Mapping) else dict(item)) for item in asked)


def _content(item: Mapping[str, Any]) -> str:
    content = item.get("content") or ""
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, Mapping) else dict(part) for part in content]
    return "\n".join(str(part.get("text", "")) for part in parts)


@dataclass
class Audited:
    """A server that is up, with its judges."""

    server: SimpleResourcesServer
    app: FastAPI
    url: str
    act: Act | None = None
    judges: list[ScriptedJudge] = field(default_factory=list)

    async def play(self, row: Row, reply: Reply) -> Answer:
        """One rollout in a session of its own: seeded, acted, verified."""
        cookies: dict[str, str] = {}
        try:
            async with asyncio.timeout(LONGEST_CALL):
                seeded = await self._post("/seed_session", row, cookies)
                if seeded.status != 200:
                    return Answer(seeded.status, seeded.body, problem=f"/seed_session: status {seeded.status}")
                if self.act is not None:
                    await self.act(row, reply, self._caller(cookies))
                return await self._post("/verify", {**row, "response": response_of(reply, row)}, cookies)
        except (ToolFailed, TimeoutError) as problem:
            return Answer(0, None, problem=str(problem) or f"no answer within {LONGEST_CALL:g} s")

    def _caller(self, cookies: dict[str, str]) -> Call:
        async def call(path: str, body: Any = None) -> Any:
            answer = await self._post(path, {} if body is None else body, cookies)
            if answer.status >= 500:
                raise ToolFailed(f"status {answer.status}: {str(answer.body)[:200]}", where=path)
            return answer.body

        return call

    async def _post(self, path: str, body: Any, cookies: dict[str, str]) -> Answer:
        began = time.perf_counter()
        reply = await local.dispatch(self.app, "POST", f"{self.url}{path}", json=body, cookies=dict(cookies))
        seconds = time.perf_counter() - began
        cookies.update({name: cookie.value for name, cookie in reply.cookies.items()})
        text = await reply.read()
        try:
            answered = json.loads(text)
        except ValueError:
            answered = text.decode(errors="replace")
        return Answer(reply.status, answered, seconds)

    @property
    def asked(self) -> int:
        """How often a judge was asked."""
        return sum(judge._asked for judge in self.judges)

    @property
    def judge_problem(self) -> str | None:
        """What a judge's function raised, if it did."""
        return next((judge._raised for judge in self.judges if judge._raised), None)

    def let_judges(self, answer: Callable[[str], str]) -> None:
        """What every judge says from now on."""
        for judge in self.judges:
            judge._answer = answer


@contextmanager
def scripted_judges(names: Iterable[str], where: str) -> Iterator[tuple[ServerClient, list[ScriptedJudge]]]:
    """Judges in process under the names of model servers, and a client that finds them."""
    places = {judge: {"host": f"{judge}.{where}", "port": PORT, "entrypoint": "app.py"} for judge in names}
    blocks = {judge: {"responses_api_models": {"judge": place}} for judge, place in places.items()}
    head = BaseServerConfig(host="127.0.0.1", port=PORT)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(blocks))
    judges = []
    try:
        for judge, place in places.items():
            config = BaseResponsesAPIModelConfig.model_validate({**place, "name": judge})
            judges.append(ScriptedJudge(config=config, server_client=client))
            local.mount(f"{judge}.{where}", PORT, judges[-1].prepare_webserver({}))
        yield client, judges
    finally:
        for judge in places:
            local.unmount(f"{judge}.{where}", PORT)


@asynccontextmanager
async def audited_server(
    module: ModuleType, name: str, settings: Mapping[str, Any], act: Act | None
) -> AsyncIterator[Audited]:
    """The server of a folder's `app.py`, as it would be served, with judges for the models it names.

    Raises:
        ConfigError: the module has no server, or its configuration does not fit.
    """
    host = f"{name}.audit"
    place = {"host": host, "port": PORT, "name": name}
    with scripted_judges(sorted({ref["name"] for ref in model_refs(settings)}), host) as (client, judges):
        server = _built(server_class(module), name, {**settings, **place}, client)
        app = server.prepare_webserver({})
        async with app.router.lifespan_context(app):
            yield Audited(server, app, f"http://{host}:{PORT}", act, judges)


def _built(
    cls: type[SimpleResourcesServer], name: str, settings: Mapping[str, Any], client: ServerClient
) -> SimpleResourcesServer:
    config_class: Any = cls.model_fields["config"].annotation
    try:
        return cls(config=config_class.model_validate({"entrypoint": "app.py", **settings}), server_client=client)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise ConfigError("; ".join(problems), where=f"configuration of {name}", fix="CONFIG in audit.py") from None


def server_class(module: ModuleType) -> type[SimpleResourcesServer]:
    """The one server that a module defines; of several the one that builds on the others.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, SimpleResourcesServer) and one.__module__ == module.__name__
    ]
    last = [one for one in found if not any(other is not one and issubclass(other, one) for other in found)]
    if len(last) != 1:
        raise ConfigError(f"defines {len(last)} resources servers, one is wanted", where=module.__name__)
    return last[0]


def model_refs(settings: Any) -> Iterator[Mapping[str, Any]]:
    """Every reference to a model server in a configuration."""
    if isinstance(settings, Mapping):
        if settings.get("type") == "responses_api_models" and settings.get("name"):
            yield settings
        for value in settings.values():
            yield from model_refs(value)


def folder_settings(folder: Path) -> dict[str, Any]:
    """What the folder's own configuration says about its server; nothing if it has none.

    Raises:
        ConfigError: it cannot be read.
    """
    named = folder / "configs" / f"{folder.name}.yaml"
    others = sorted((folder / "configs").glob("*.yaml"))
    for path in [named] if named.exists() else others[:1]:
        tree: Tree = {}
        for source in load_files([str(path.absolute())], [folder.parent.parent]).sources:
            merge_into(tree, source.tree, root=tree)
        settings = _block(expand_directives(tree).tree, folder.name, path)
        if settings is not None:
            return settings
    return {}


def _block(tree: Mapping[Any, Any], implementation: str, path: Path) -> dict[str, Any] | None:
    for instance, block in tree.items():
        servers = block.get("resources_servers") if isinstance(block, Mapping) else None
        if isinstance(servers, Mapping) and implementation in servers:
            try:
                whole = OmegaConf.create(dict(tree))
                found = OmegaConf.to_container(whole[instance]["resources_servers"][implementation], resolve=True)
            except OmegaConfBaseException as error:
                raise ConfigError(str(error).split("\n", 1)[0], where=str(path), fix="CONFIG in audit.py") from None
            return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    return None
