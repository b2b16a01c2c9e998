"""One rollout of an environment of verifiers: its own loop and rubric run, and call our model."""

import importlib
import random
from typing import Any

from nemo_gym.adapters.episodes import Action, PeerTurn, Row, episode_function
from nemo_gym.adapters.model_calls import CallingEpisode, argument_text, function_tool


def prepare() -> None:
    """Import once, before the sessions start, what an environment uses; the package imports it late, for seconds."""
    package = importlib.import_module("verifiers.legacy")
    for name in ("load_environment", "Rubric", "SingleTurnEnv", "MultiTurnEnv", "ToolEnv", "XMLParser", "ThinkParser"):
        getattr(package, name)
    for name in ("datasets.arrow_dataset", "verifiers.legacy.clients", "verifiers.legacy.utils.eval_utils", "pandas"):
        importlib.import_module(name)


def load_environment(row: Row) -> Any:
    """Return the environment of a row; its rubric must be able to grade one rollout alone."""
    random.seed(row["seed"])
    env = importlib.import_module("verifiers.legacy").load_environment(row["environment"], **row["arguments"])
    if env.requires_group_rollouts:
        raise TypeError(f"{row['environment']} compares the rollouts of a group, which one rollout cannot be graded by")
    return env


def policy_client(episode: CallingEpisode) -> Any:
    """Return a client of the package whose model is the policy."""
    types = importlib.import_module("verifiers.legacy.types")

    async def get_response(self: Any, prompt: Any, model: str, tools: Any = None, **options: Any) -> Any:  # noqa: ARG001
        action = await episode.ask([as_message(one) for one in prompt], [as_tool(tool) for tool in tools or ()])
        return response(types, model, action)

    base = importlib.import_module("verifiers.legacy.clients").Client
    others = dict.fromkeys(base.__abstractmethods__, None)  # parts of the get_response that is replaced
    return type("PolicyClient", (base,), {**others, "get_response": get_response})(None)


def response(types: Any, model: str, action: Action) -> Any:
    calls = [types.ToolCall(id=one["call_id"], name=one["name"], arguments=argument_text(one)) for one in action.calls]
    message = types.ResponseMessage(
        content=action.text,
        tool_calls=calls or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return types.Response(id="policy", created=0, model=model, message=message)


def as_message(message: Any) -> dict[str, Any]:
    """Return a message of the package as one of Chat Completions."""
    fields = message.model_dump(exclude_none=True)
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in fields.get("tool_calls") or ()
    ]
    names = ("role", "content", "tool_call_id")
    kept = {name: fields[name] for name in names if name in fields}
    return {**kept, **({"tool_calls": calls} if calls else {})}


def as_tool(tool: Any) -> dict[str, Any]:
    return function_tool(tool.name, tool.description, dict(tool.parameters))


class VerifiersEpisode(CallingEpisode):
    async def play(self, row: Row) -> PeerTurn:
        env = load_environment(row)
        random.seed(row["seed"])  # again: how often the load of a dataset draws may differ
        # As `env.run_rollout`, whose result has the messages in a form for files.
        state = await env._run_rollout_state(row["example"], policy_client(self), "policy", {})
        if (error := state["error"]) is not None:
            raise RuntimeError(f"the environment reports {type(error).__name__}: {error}") from error
        return PeerTurn(
            reward=float(state["reward"]),
            truncated=bool(state["is_truncated"] or state.get("timed_out")),
            messages=[as_message(one) for one in [*state["prompt"], *state["completion"]]],
            info={"metrics": state["metrics"], "stop_condition": state["stop_condition"]},
        )


play = episode_function(VerifiersEpisode)
