"""Episodes of packages whose own loop calls the model: each call becomes a turn of the policy.

The package runs as a coroutine of the session's process. It stops at each call of the model, until the next turn of the
policy brings the reply. Messages are those of Chat Completions.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerEpisode, PeerTurn, Row

Message = dict[str, Any]


@dataclass
class PendingCall:
    """A call of the model that waits for its reply."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    is_grader: bool
    reply: "asyncio.Future[Action]"


class CallingEpisode(PeerEpisode):
    """An episode whose package calls the model; `play` runs it and awaits `ask` for each reply."""

    @abstractmethod
    async def play(self, row: Row) -> PeerTurn:
        """Run the package's loop and its grading; return the end, whose `messages` are the whole conversation."""

    async def ask(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = (), *, is_grader: bool = False
    ) -> Action:
        """Return the reply of the policy, or of the model that grades."""
        call = PendingCall(list(messages), list(tools), is_grader, self._loop.create_future())
        await self._calls.put(call)
        return await call.reply

    def start(self, row: Row) -> PeerTurn:
        self._loop = asyncio.new_event_loop()
        self._calls: asyncio.Queue[PendingCall] = asyncio.Queue()
        self._conversation: list[Message] = []
        self._graders = 0
        self._episode = self._loop.create_task(self.play(row))
        return self._next_turn()

    def step(self, action: Action) -> PeerTurn:
        if not self._call.is_grader:
            self._conversation.append(assistant_message(action))
        self._call.reply.set_result(action)
        return self._next_turn()

    def close(self) -> None:
        self._episode.cancel()
        self._loop.run_until_complete(asyncio.wait([self._episode], timeout=5))
        self._loop.close()

    def _next_turn(self) -> PeerTurn:
        """Run the package until it calls a model or ends; an error ends the episode."""
        try:
            return self._turn()
        except BaseException:
            self.close()
            raise

    def _turn(self) -> PeerTurn:
        call = self._loop.run_until_complete(self._wait())
        if call is None:
            return self._final_turn(self._episode.result())
        self._call = call
        if call.is_grader:  # every call of the grader begins a conversation
            self._graders += 1
            return PeerTurn(None, player=self._graders, messages=list(input_items(call.messages)))
        is_first = not self._conversation
        new = self._new_messages(call.messages)
        self._conversation = list(call.messages)
        if is_first:
            return PeerTurn(None, player=0, messages=list(input_items(new)), tools=call.tools)
        return PeerTurn(observation(new), player=0, outputs=tool_outputs(new))

    async def _wait(self) -> PendingCall | None:
        """Return the next call of a model; None if the package has ended."""
        call = self._loop.create_task(self._calls.get())
        await asyncio.wait([call, self._episode], return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return call.result()
        call.cancel()
        return None

    def _new_messages(self, messages: list[Message]) -> list[Message]:
        """Return the messages that follow the conversation; a conversation that does not continue it is an error."""
        earlier = [_facts(message) for message in self._conversation]
        if [_facts(message) for message in messages[: len(earlier)]] != earlier:
            raise RuntimeError(
                "the package changed the conversation or began another one: "
                "only a conversation that grows can be the turns of a rollout"
            )
        new = messages[len(earlier) :]
        if earlier and (wrong := {message["role"] for message in new} - {"user", "tool"}):
            raise RuntimeError(f"the package added a message of the role {min(wrong)} within the conversation")
        return new

    def _final_turn(self, end: PeerTurn) -> PeerTurn:
        """Return the end with what the package showed after the last reply."""
        if not self._conversation:
            raise RuntimeError("the package ended the episode without a call of the model")
        length = len(self._conversation)
        messages = end.messages or []
        is_continued = [_facts(one) for one in messages[:length]] == [_facts(one) for one in self._conversation]
        new = messages[length:] if is_continued else []
        end.content, end.outputs, end.messages = observation(new), tool_outputs(new), None
        end.done, end.player = True, 0
        end.ending = end.ending or ("truncated" if end.truncated else "finished")
        return end


def assistant_message(action: Action) -> Message:
    """Return the reply of a model as a message."""
    calls = [
        {
            "id": call["call_id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": argument_text(call)},
        }
        for call in action.calls
    ]
    return {"role": "assistant", "content": action.text, **({"tool_calls": calls} if calls else {})}


def argument_text(call: dict[str, Any]) -> str:
    """Return the arguments of a tool call as the model wrote them."""
    return str(call["text"]) if "text" in call else json.dumps(call["arguments"])


def function_tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as a model request lists it."""
    schema = {"type": "object", "properties": {}, **parameters}
    return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": False}


def observation(messages: Sequence[Message]) -> Any:
    """Return the content of new user messages, as text if they have nothing else."""
    contents = [_content(message) for message in messages if message["role"] == "user"]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    return [part for content in contents for part in (_text_parts(content) if isinstance(content, str) else content)]


def tool_outputs(messages: Sequence[Message]) -> dict[str, Any] | None:
    """Return the output of each tool call by its id; None without one."""
    outputs = {one["tool_call_id"]: _content(one) for one in messages if one["role"] == "tool"}
    return outputs or None


def input_items(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yield messages as items of the input of a model request."""
    for message in messages:
        if message["role"] == "tool":
            yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": _content(message)}
            continue
        content = _content(message)
        if content or not message.get("tool_calls"):
            yield {"type": "message", "role": message["role"], "content": content}
        for call in message.get("tool_calls") or ():
            function = call["function"]
            fields = {"call_id": call["id"], "name": function["name"], "arguments": function["arguments"]}
            yield {"type": "function_call", **fields}


def _content(message: Message) -> Any:
    """Return the content of a message: text, or the parts of a request if it has more than text."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return [part for one in content for part in _parts(one)]


def _parts(part: dict[str, Any]) -> list[dict[str, Any]]:
    if part["type"] == "text":
        return _text_parts(part["text"])
    if part["type"] == "image_url":
        return [{"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}]
    raise TypeError(f"the package shows the model content of the type {part['type']}, which is not supported")


def _text_parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "input_text", "text": text}] if text else []


def _facts(message: Message) -> tuple[Any, ...]:
    """Return what makes two messages the same."""
    calls = [(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ()]
    return message["role"], _content(message), calls, message.get("tool_call_id")
