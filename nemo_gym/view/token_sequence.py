"""The tokens of a rollout as one sequence: which were generated and are trained on, and how likely each was."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.view.conversation import GENERATED_IDS, TOKEN_FIELDS
from nemo_gym.view.turns import event_turns
from nemo_gym.wire.stored_rollout import StoredRollout

MAX_SURPRISING = 20


@dataclass
class TokenSequence:
    """The sequence of a rollout. `log_probs` is None where a token was not generated or has none recorded."""

    ids: list[int] = field(default_factory=list)
    log_probs: list[float | None] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    is_contiguous: bool = True
    """Each prompt begins with the tokens before it."""

    def add(self, kind: str, ids: list[int], log_probs: list[float | None] | None = None, **facts: Any) -> None:
        """Append a segment; one with `log_probs` was generated."""
        if not ids:
            return
        is_trained = log_probs is not None
        numbers = [value for value in log_probs or () if value is not None]
        mean = {"mean_log_prob": math.fsum(numbers) / len(numbers)} if numbers else {}
        segment = {"kind": kind, "start": len(self.ids), "count": len(ids), "trained": is_trained}
        self.segments.append({**segment, **facts, **mean})
        self.ids += ids
        self.log_probs += log_probs if log_probs is not None else [None] * len(ids)
        self.mask += [int(is_trained)] * len(ids)


def read_sequence(record: Mapping[str, Any], first_event: int) -> TokenSequence:
    """Return the tokens of all turns; `first_event` is the number of the first item of the response."""
    sequence = TokenSequence()
    turns = event_turns(record)
    for index, item in enumerate(StoredRollout(record).output):
        if not isinstance(item, dict) or not isinstance(item.get(GENERATED_IDS), list):
            continue
        prompt, generated, numbers = (_integers(item, name) for name in TOKEN_FIELDS)
        length = len(sequence.ids)
        if prompt[:length] != sequence.ids:
            sequence.is_contiguous = False
            sequence.add("prompt", [int(one) for one in prompt])
        else:
            sequence.add("tool" if length else "prompt", [int(one) for one in prompt[length:]])
        log_probs = [float(one) if isinstance(one, int | float) and math.isfinite(one) else None for one in numbers]
        log_probs += [None] * (len(generated) - len(log_probs))
        facts = {"turn": turns[index]} if index in turns else {}
        ids = [int(one) for one in generated]
        sequence.add("turn", ids, log_probs[: len(generated)], event=first_event + index, **facts)
    return sequence


def sequence_facts(record: Mapping[str, Any], first_event: int, start: int, count: int) -> dict[str, Any]:
    """Return `count` tokens from `start` on, and the segments and the least likely tokens of the whole sequence."""
    sequence = read_sequence(record, first_event)
    numbers = [value for value in sequence.log_probs if value is not None]
    ranked = sorted((value, index) for index, value in enumerate(sequence.log_probs) if value is not None)[
        :MAX_SURPRISING
    ]
    surprising = []
    for value, index in ranked:
        segment = next(one for one in reversed(sequence.segments) if one["start"] <= index)
        turn = {"turn": segment["turn"]} if "turn" in segment else {}
        surprising.append({"position": index, "id": sequence.ids[index], "log_prob": value, **turn})
    return {
        "total": len(sequence.ids),
        "trained": sum(sequence.mask),
        "contiguous": sequence.is_contiguous,
        **({"mean_log_prob": math.fsum(numbers) / len(numbers)} if numbers else {}),
        "segments": sequence.segments,
        "start": start,
        "ids": sequence.ids[start : start + count],
        "log_probs": sequence.log_probs[start : start + count],
        "mask": sequence.mask[start : start + count],
        "surprising": surprising,
    }


def _integers(item: Mapping[str, Any], name: str) -> list[Any]:
    values = item.get(name)
    return [value for value in values if isinstance(value, int | float)] if isinstance(values, list) else []
