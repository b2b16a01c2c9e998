"""OpenPipe ART: trajectory groups whose trainable turns are chat choices with token ids and log-probs."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import orjson

from nemo_gym.data.export_messages import read_conversation
from nemo_gym.errors import ConversionError
from nemo_gym.training.adapters import reward_of
from nemo_gym.training.types import Rollout, Sample, Span


def to_trajectory_groups(rollouts: Iterable[Rollout]) -> list[Any]:
    """Return one `TrajectoryGroup` for each group of rollouts.

    A trajectory needs one unbroken sample. Rollouts that are not trainable, have several samples or content that chat
    messages cannot express are among the `exceptions` of their group. ART renders the other messages with its own
    template; only the tokens of the model's turns are those of the engine.
    """
    art = import_module("art")
    groups: dict[str, list[Any]] = {}
    for rollout in rollouts:
        members = groups.setdefault(rollout.group, [])
        try:
            members.append(_trajectory(rollout, art))
        except ConversionError as error:
            members.append(error)
    return [
        art.TrajectoryGroup(
            [member for member in members if not isinstance(member, ConversionError)],
            exceptions=[member for member in members if isinstance(member, ConversionError)],
        )
        for members in groups.values()
    ]


def _trajectory(rollout: Rollout, art: Any) -> Any:
    """Build the trajectory of one rollout.

    Raises:
        ConversionError: the rollout is not trainable, or its turns do not match its chat messages.
    """
    where = f"rollout {rollout.rollout_id}"
    if not rollout.trainable:
        raise ConversionError(rollout.why_not or "not trainable", where=where)
    if len(rollout.samples) != 1:
        raise ConversionError(f"ART needs one sample, not {len(rollout.samples)}", where=where)
    (sample,) = rollout.samples
    conversation = read_conversation(rollout.result)
    turns = [message for message in conversation.completion if message["role"] == "assistant"]
    if len(turns) != len(sample.spans):
        problem = f"{len(turns)} assistant messages do not match {len(sample.spans)} model calls"
        raise ConversionError(problem, where=where)
    spans = iter(sample.spans)
    messages = [
        _choice(message, sample, next(spans)) if message["role"] == "assistant" else message
        for message in conversation.completion
    ]
    versions = rollout.weight_version or (None, None)
    return art.Trajectory(
        messages_and_choices=[*conversation.prompt, *messages],
        tools=conversation.tools or None,
        reward=reward_of(rollout),
        initial_policy_version=versions[0],
        final_policy_version=versions[1],
        metrics=dict(rollout.reward_components),
        metadata={"rollout_id": rollout.rollout_id},
    )


def _choice(message: dict[str, Any], sample: Sample, span: Span) -> Any:
    """Return a chat choice; its log-probs name the tokens as `token_id:<id>`. A constrained turn stays a message."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _argument_text(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or []
    ]
    fields = {"role": "assistant", "content": message.get("content"), **({"tool_calls": calls} if calls else {})}
    if span.constrained:
        return fields
    tokens = zip(sample.token_ids[span.start : span.end], sample.logprobs[span.start : span.end], strict=True)
    return import_module("openai.types.chat.chat_completion").Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "length" if span.finish_reason == "length" else "tool_calls" if calls else "stop",
            "message": fields,
            "logprobs": {
                "content": [
                    {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []} for token, logprob in tokens
                ]
            },
        }
    )


def _argument_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
