"""One episode of an OpenEnv environment, over its WebSocket: its action is a tool, with the fields of its schema."""

import asyncio
import importlib
import json
import socket
import threading
from collections.abc import Coroutine
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row, episode_function
from nemo_gym.adapters.model_calls import function_tool

Value = TypeVar("Value")

TOOL = "step"
START_SECONDS = 30
"""Longest time until the server of a package answers."""
CLOSE_SECONDS = 5
"""Longest time until the server of a package, or the thread of an episode, has ended."""
NO_CALL = f'Act with the tool "{TOOL}".'
INVALID_ARGUMENTS = {"error": "the arguments of this call are not a JSON object"}
_INVALID = "(code: VALIDATION_ERROR)"
_URL = ("http://", "https://", "ws://", "wss://")


def prepare() -> None:
    """Import the package once, before the sessions start."""
    for name in ("openenv.core.generic_client", "openenv.core.env_server.http_server", "uvicorn", "httpx"):
        importlib.import_module(name)


class OpenEnvEpisode(PeerEpisode):
    """An episode over a WebSocket, whose loop runs in a thread: it answers pings while the policy thinks."""

    def start(self, row: Row) -> PeerTurn:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(name="openenv", target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: Any = None
        self._server: Any = None
        try:
            return self._run(self._start(row))
        except BaseException:
            self.close()
            raise

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine in the thread of the loop; the time limit of the session ends the wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, row: Row) -> PeerTurn:
        url = row["environment"]
        if not url.startswith(_URL):
            url = await self._serve(url)
        schema = await action_schema(url)
        self._text_field = only_text_field(schema)
        client = importlib.import_module("openenv.core.generic_client").GenericEnvClient(base_url=url)
        self._client = client
        await client.connect()
        self._socket = client._ws
        result = await client.reset(seed=row["seed"], **row["arguments"])
        self._check_connection()
        tool = function_tool(TOOL, str(schema.get("description", "Act in the environment.")), _parameters(schema))
        return PeerTurn(observation_text(result.observation), tools=[tool])

    async def _serve(self, name: str) -> str:
        """Serve the application `module:app` of a package on a free port of the loopback interface; return its URL."""
        module, _, attribute = name.rpartition(":")
        uvicorn = importlib.import_module("uvicorn")
        app = getattr(importlib.import_module(module), attribute)
        listener = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        self._serving = self._loop.create_task(self._server.serve(sockets=[listener]))
        async with asyncio.timeout(START_SECONDS):
            while not self._server.started:
                if self._serving.done():
                    raise RuntimeError(f"the server of {name} ended at its start")
                await asyncio.sleep(0.005)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def step(self, action: Action) -> PeerTurn:
        return self._run(self._step(action))

    async def _step(self, action: Action) -> PeerTurn:
        if not action.calls:
            if self._text_field is None:
                return PeerTurn(NO_CALL)
            shown, reward, done = await self._act({self._text_field: action.text})
            return PeerTurn(shown, reward=reward, done=done, ending="finished" if done else None)
        outputs: dict[str, Any] = {}
        total, done = 0.0, False
        for call in action.calls:
            if done:
                shown: Any = {"error": "the episode is over"}
            elif call["name"] != TOOL:
                shown = {"error": f"there is no tool {call['name']}"}
            elif not isinstance(call["arguments"], dict):
                shown = INVALID_ARGUMENTS
            else:
                shown, reward, done = await self._act(call["arguments"])
                total += reward
            outputs[call["call_id"]] = shown if isinstance(shown, str) else json.dumps(shown)
        return PeerTurn("", reward=total, done=done, ending="finished" if done else None, outputs=outputs)

    async def _act(self, fields: dict[str, Any]) -> tuple[Any, float, bool]:
        """Make a step; return what it shows, its reward, and whether the episode is over."""
        try:
            result = await self._client.step(fields)
        except RuntimeError as error:
            self._check_connection()
            if _INVALID not in str(error):
                raise
            return {"error": str(error)}, 0.0, False  # a mistake of the model, which may try again
        self._check_connection()
        return observation_text(result.observation), float(result.reward or 0.0), bool(result.done)

    def _check_connection(self) -> None:
        """Raise ConnectionError if the client has connected again: its new session was never reset.

        The client connects again without notice. Its socket is the only sign, and has no public name.
        """
        if self._client._ws is not self._socket:
            raise ConnectionError("the server of the environment closed the connection, and with it the episode")

    def close(self) -> None:
        try:
            self._run(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            if not self._thread.is_alive():
                self._loop.close()

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving], timeout=CLOSE_SECONDS)


async def action_schema(url: str) -> dict[str, Any]:
    """Return the JSON schema of the actions of a server."""
    base = url.replace("ws://", "http://", 1).replace("wss://", "https://", 1).rstrip("/")
    async with importlib.import_module("httpx").AsyncClient(trust_env=not _is_loopback(base), timeout=30) as client:
        reply = await client.get(f"{base}/schema")
        reply.raise_for_status()
        schema: dict[str, Any] = reply.json()["action"]
    return schema


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without the field `metadata`, which every action has and no model needs."""
    properties = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
    return {**schema, "properties": properties}


def only_text_field(schema: dict[str, Any]) -> str | None:
    """Return the field that the text of the model can be: the only field, if it is a string."""
    properties = _parameters(schema)["properties"]
    names = list(properties)
    return names[0] if len(names) == 1 and properties[names[0]].get("type") == "string" else None


def observation_text(observation: dict[str, Any]) -> str:
    """Return an observation as the model sees it: its only text, or JSON."""
    fields = {name: value for name, value in observation.items() if name not in ("done", "reward", "metadata")}
    values = list(fields.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(fields)


play = episode_function(OpenEnvEpisode)
