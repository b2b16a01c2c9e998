"""verl: a `DataProto` batch, as an agent loop manager returns it from `generate_sequences`."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.training.adapters import reward_of, trainable_samples
from nemo_gym.training.types import Rollout, Sample


def to_data_proto(
    rollouts: Iterable[Rollout],
    *,
    pad_token_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> Any:
    """Return a `DataProto` with one row for each sample: prompts padded on the left, responses on the right.

    The lengths are those of the longest sample unless given. The reward is at the last response token (`rm_scores`).
    Rollouts that are not trainable have no row: a placeholder with reward 0 would move the baseline of its group.

    Raises:
        ConfigError: there is no trainable sample, or a sample is longer than a given length.
    """
    pairs = list(trainable_samples(rollouts))
    if not pairs:
        raise ConfigError("no rollout is trainable, so there is no batch", fix="read Rollout.why_not")
    prompts = [sample.token_ids[: sample.prompt_len] for _, sample in pairs]
    responses = [sample.token_ids[sample.prompt_len :] for _, sample in pairs]
    width = _width("prompt_length", prompt_length, prompts), _width("response_length", response_length, responses)
    torch, numpy = import_module("torch"), import_module("numpy")

    def pad_left(rows: list[list[int]], fill: int) -> Any:
        return torch.tensor([[fill] * (width[0] - len(row)) + row for row in rows])

    def pad_right(rows: list[list[Any]], fill: Any) -> Any:
        return torch.tensor([row + [fill] * (width[1] - len(row)) for row in rows])

    attention = torch.cat(
        [pad_left([[1] * len(row) for row in prompts], 0), pad_right([[1] * len(row) for row in responses], 0)], 1
    )
    padded_prompts, padded_responses = pad_left(prompts, pad_token_id), pad_right(responses, pad_token_id)
    tensors = {
        "prompts": padded_prompts,
        "responses": padded_responses,
        "input_ids": torch.cat([padded_prompts, padded_responses], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": pad_right([sample.loss_mask[sample.prompt_len :] for _, sample in pairs], 0),
        "rollout_log_probs": pad_right([sample.logprobs[sample.prompt_len :] for _, sample in pairs], 0.0),
        "rm_scores": pad_right([_scores(rollout, sample) for rollout, sample in pairs], 0.0),
    }
    others = {
        "uid": [rollout.group for rollout, _ in pairs],
        "rollout_id": [rollout.rollout_id for rollout, _ in pairs],
        "__num_turns__": [len(sample.spans) for _, sample in pairs],
    }
    arrays = {name: numpy.array(values, dtype=object) for name, values in others.items()}
    return import_module("verl").DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def _scores(rollout: Rollout, sample: Sample) -> list[float]:
    """Return the reward at the last generated token, and 0.0 at the others."""
    last = sample.spans[-1].end - 1 - sample.prompt_len
    return [reward_of(rollout) if index == last else 0.0 for index in range(len(sample.token_ids) - sample.prompt_len)]


def _width(name: str, limit: int | None, rows: list[list[int]]) -> int:
    longest = max(map(len, rows))
    if limit is not None and longest > limit:
        raise ConfigError(f"a sample has {longest} tokens, more than {name}={limit}", fix=f"raise {name}")
    return longest if limit is None else limit
