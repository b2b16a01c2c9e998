"""One episode of an Aviary environment: every turn is a message, with tool calls or without."""

import asyncio
import importlib
import random
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row, episode_function

INVALID_ARGUMENTS = '{"error": "the arguments of this call are not a JSON object"}'


def prepare() -> None:
    """Import the package once, before the sessions start."""
    importlib.import_module("aviary.core")


def find_class(name: str) -> Any:
    """Return the environment or the task dataset of an id: a registered name, or `module:Name`."""
    env = importlib.import_module("aviary.env")
    entry = env.ENV_REGISTRY.get(name) or env.TASK_DATASET_REGISTRY.get(name) or name.rsplit(":", 1)
    module, attribute = entry
    return getattr(importlib.import_module(module), attribute)


def is_dataset(found_class: Any) -> bool:
    return issubclass(found_class, importlib.import_module("aviary.env").TaskDataset)


class AviaryEpisode(PeerEpisode):
    def start(self, row: Row) -> PeerTurn:
        self._loop = asyncio.new_event_loop()
        self._aviary = importlib.import_module("aviary.core")
        random.seed(row["seed"])
        made = find_class(row["environment"])(**row["arguments"])
        self._env = made.get_new_env_by_idx(row["index"]) if is_dataset(type(made)) else made
        messages, tools = self._loop.run_until_complete(self._env.reset())
        return PeerTurn(_text(messages), tools=[_definition(tool.info) for tool in tools])

    def step(self, action: Action) -> PeerTurn:
        readable = [call for call in action.calls if isinstance(call["arguments"], dict)]
        outputs = {call["call_id"]: INVALID_ARGUMENTS for call in action.calls}
        if action.calls and not readable:
            return PeerTurn("", outputs=outputs)
        messages, reward, done, truncated = self._loop.run_until_complete(
            self._env.step(self._message(action, readable))
        )
        outputs |= {one.tool_call_id: one.content for one in messages if getattr(one, "tool_call_id", None)}
        others = [one for one in messages if not getattr(one, "tool_call_id", None)]
        return PeerTurn(
            _text(others),
            reward=float(reward),
            done=bool(done or truncated),
            truncated=bool(truncated and not done),
            ending="finished" if done else "truncated" if truncated else None,
            outputs=outputs if action.calls else None,
        )

    def close(self) -> None:
        self._loop.run_until_complete(self._env.close())
        self._loop.close()

    def _message(self, action: Action, calls: list[dict[str, Any]]) -> Any:
        """Return the turn of the model as a message of the package."""
        if not calls:
            return self._aviary.Message(role="assistant", content=action.text)
        functions = [
            self._aviary.ToolCall(id=call["call_id"], function={"name": call["name"], "arguments": call["arguments"]})
            for call in calls
        ]
        return self._aviary.ToolRequestMessage(content=action.text or None, tool_calls=functions)


def _definition(info: Any) -> dict[str, Any]:
    """Return the definition of a tool as a model request lists it."""
    parameters = info.parameters.model_dump(exclude_none=True) if info.parameters else {"type": "object"}
    description = {"type": "function", "name": info.name, "description": info.description}
    return {**description, "parameters": {"properties": {}, **parameters}, "strict": False}


def _text(messages: list[Any]) -> str:
    return "\n\n".join(str(message.content) for message in messages if message.content)


play = episode_function(AviaryEpisode)
