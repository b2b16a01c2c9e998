"""One sample of an Inspect task: its solver and scorers run, with our model behind them."""

import contextlib
import importlib
import json
import random
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerTurn, Row, episode_function
from nemo_gym.adapters.model_calls import CallingEpisode, argument_text, function_tool

POLICY, GRADER = "policy", "grader"
WORDS = frozenset({"c", "i", "p", "n", "yes", "no", "true", "false"})
"""Values of a score that are words and stand for numbers."""
_QUIET = {"ctl_server": False, "acp_server": False, "log_realtime": False, "notification": False, "log_images": False}
"""What an evaluation starts beside the sample."""
IMPORTED = (
    *("inspect_ai._eval.eval", "inspect_ai._eval.task.run", "inspect_ai.hooks._startup", "inspect_ai.scorer"),
    *("inspect_ai.model._openai_responses", "inspect_ai.model._providers.anthropic", "inspect_ai.solver._transcript"),
    *("inspect_ai.agent._acp.server", "inspect_ai.log._recorders.eval", "inspect_ai.model._providers.none"),
    *("anyio._backends._asyncio", "fsspec.implementations.memory", "markdown_it", "numpy"),
)
"""Modules that a first evaluation imports, for seconds."""


def prepare() -> None:
    """Import the package and register our model, once, before the sessions start."""
    importlib.import_module("inspect_ai.util._display").init_display_type("none")
    for name in IMPORTED:
        with contextlib.suppress(ImportError):  # some need packages of model providers
            importlib.import_module(name)
    register_model()


def load_task(name: str, arguments: dict[str, Any]) -> Any:
    """Return the task of an id, `module:task`.

    Raises:
        TypeError: it is neither a Task nor a function with the decorator @task. No other function is called.
    """
    module, colon, attribute = name.rpartition(":")
    if not colon:
        raise TypeError(f"{name} is not of the form MODULE:TASK")
    member = getattr(importlib.import_module(module), attribute)
    if is_task_function(member):
        return member(**arguments)
    if not isinstance(member, importlib.import_module("inspect_ai").Task):
        raise TypeError(f"{name} is no task of Inspect: neither a Task nor a function with the decorator @task")
    if arguments:
        raise TypeError(f"{name} is a Task, not a function, so it takes no setting '{next(iter(arguments))}'")
    return member


def is_task_function(member: Any) -> bool:
    """Return whether an attribute of a module is a function with the decorator @task."""
    try:
        kind: str = importlib.import_module("inspect_ai.util").registry_info(member).type
    except ValueError:  # it has no decorator of the package
        return False
    return kind == "task"


def refuse_local_sandbox(name: str, *specs: Any) -> None:
    """Raise TypeError if code of the model would run as this user."""
    if any(spec is not None and spec.type == "local" for spec in specs):
        raise TypeError(f"{name} runs code of the model outside of a sandbox (sandbox='local')")


def register_model() -> None:
    """Register the provider `gym` of the package, whose calls wait for our models."""
    package = importlib.import_module("inspect_ai.model")

    async def generate(self: Any, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:  # noqa: A002, ARG001
        messages, offered = [as_message(one) for one in input], [as_tool(tool) for tool in tools]
        action = await self.episode.ask(messages, offered, is_grader=self.model_name == GRADER)
        return output(package, self.model_name, action)

    async def count_text_tokens(self: Any, text: str) -> int:  # noqa: ARG001
        return max(1, len(text) // 4)  # the package's own count needs a table that it downloads

    methods = {"generate": generate, "count_text_tokens": count_text_tokens}
    model_class = type("GymModel", (package.ModelAPI,), methods)
    package.modelapi(name="gym")(model_class)


def output(package: Any, model: str, action: Action) -> Any:
    """Return a reply of our model as the package's."""
    parse = importlib.import_module("inspect_ai.model._call_tools").parse_tool_call
    calls = [parse(call["call_id"], call["name"], argument_text(call)) for call in action.calls]
    message = package.ChatMessageAssistant(
        content=action.text, tool_calls=calls or None, model=model, source="generate"
    )
    choice = package.ChatCompletionChoice(message=message, stop_reason="tool_calls" if calls else "stop")
    return package.ModelOutput(model=model, choices=[choice], usage=package.ModelUsage())


def as_message(message: Any) -> dict[str, Any]:
    """Return a message of the package as one of Chat Completions."""
    content = message.content
    if not isinstance(content, str):
        content = [_part(part) for part in content if part.type != "reasoning"]
    fields = {"role": message.role, "content": content}
    if message.role == "tool":
        error = message.error.message if message.error else None
        return {**fields, "tool_call_id": message.tool_call_id, "content": error or content}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function, "arguments": json.dumps(call.arguments)},
        }
        for call in getattr(message, "tool_calls", None) or ()
    ]
    return {**fields, **({"tool_calls": calls} if calls else {})}


def _part(part: Any) -> dict[str, Any]:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": part.image}}
    return {"type": part.type}


def as_tool(tool: Any) -> dict[str, Any]:
    return function_tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True))


def reward_of(scores: dict[str, Any], chosen: str | None) -> float:
    """Return the value of the chosen score, `SCORER` or `SCORER.KEY`, or of the first.

    Raises:
        ValueError: there is no such score, or its value is no number.
    """
    scorer, _, key = (chosen or next(iter(scores), "")).partition(".")
    if scorer not in scores:
        raise ValueError(f"no score '{scorer}': the scorers of the task are {', '.join(scores) or 'none'}")
    value = scores[scorer].value
    if isinstance(value, dict):
        if key not in value:
            raise ValueError(f"the score '{scorer}' has parts: add scorer={scorer}.{next(iter(value), 'PART')}")
        value = value[key]
    as_number = importlib.import_module("inspect_ai.scorer").value_to_float()
    if isinstance(value, str) and value.lower() not in WORDS:
        return float(value)
    if not isinstance(value, str | int | float):
        raise ValueError(f"the score '{scorer}' is no number: {value!r}")
    return float(as_number(value))


class InspectEpisode(CallingEpisode):
    async def play(self, row: Row) -> PeerTurn:
        random.seed(row["seed"])
        package = importlib.import_module("inspect_ai")
        task = load_task(row["environment"], row["arguments"])
        sample = importlib.import_module("inspect_ai.dataset").Sample.model_validate(row["sample"])
        refuse_local_sandbox(row["environment"], task.sandbox, sample.sandbox)
        policy, grader = (self.model(name) for name in (POLICY, GRADER))
        (log,) = await package.eval_async(
            package.task_with(task, dataset=[sample]),
            model=policy,
            model_roles={"grader": grader},
            log_dir="memory://inspect",
            epochs=1,
            retry_on_error=0,
            fail_on_error=True,
            **_QUIET,
        )
        done = (log.samples or [None])[0]
        if log.status != "success" or done is None or done.error is not None:
            error = (done and done.error) or log.error
            raise RuntimeError(f"the task failed: {error.message if error else log.status}")
        scores = done.scores or {}
        return PeerTurn(
            reward=reward_of(scores, row.get("scorer")),
            truncated=done.limit is not None,
            ending=f"{done.limit.type}_limit" if done.limit else None,
            messages=[as_message(one) for one in done.messages],
            info={"scores": {name: score.value for name, score in scores.items()}},
        )

    def model(self, name: str) -> Any:
        """Return our model as the package's, whose calls come to this episode."""
        model = importlib.import_module("inspect_ai.model").get_model(f"gym/{name}")
        model.api.episode = self
        return model

    async def ask(self, messages: Any, tools: Any = (), *, is_grader: bool = False) -> Action:
        if is_grader and not self.row.get("grader"):
            raise RuntimeError("a scorer asks a model: add grader=MODEL_SERVER to the name")
        return await super().ask(messages, tools, is_grader=is_grader)

    def start(self, row: Row) -> PeerTurn:
        self.row = row
        return super().start(row)


play = episode_function(InspectEpisode)
