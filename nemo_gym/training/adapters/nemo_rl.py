"""NeMo RL: the result of a rollout with its message logs, as its NeMo Gym environment builds it."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from nemo_gym.training.adapters import trainable_samples
from nemo_gym.training.types import Rollout, Sample


def to_results(rollouts: Iterable[Rollout], *, tensor: Callable[[Any], Any] | None = None) -> list[dict[str, Any]]:
    """Return one result for each sample: `message_log`, `input_message_log` and `full_result`.

    A message log alternates between `user` (what the model read) and `assistant` (what it generated). `tensor` is
    torch's unless given.
    """
    make = tensor or import_module("torch").tensor
    results = []
    for rollout, sample in trainable_samples(rollouts):
        log = _message_log(sample, make)
        results.append({"message_log": log, "input_message_log": log[:1], "full_result": dict(rollout.result)})
    return results


def _message_log(sample: Sample, make: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Split the tokens at the spans; constrained spans count as read, so that there is no loss on them.

    Where the model read nothing between two calls there is no `user` part: torch gives an empty list the type float.
    """
    log: list[dict[str, Any]] = []
    end = 0
    for span in sample.spans:
        if span.constrained:
            continue
        if end < span.start or not log:
            log.append({"role": "user", "content": "", "token_ids": make(sample.token_ids[end : span.start])})
        log.append(
            {
                "role": "assistant",
                "content": "",
                "token_ids": make(sample.token_ids[span.start : span.end]),
                "generation_logprobs": make(sample.logprobs[span.start : span.end]),
            }
        )
        end = span.end
    return log
