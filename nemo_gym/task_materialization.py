"""Rows as tasks with an identity: `{task_id: {taskset, task_id}, task_input: {…}}`."""

from collections.abc import Mapping
from typing import Any

from nemo_gym.keys import AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME, TASK_INDEX_KEY_NAME, TASK_SOURCE_KEY_NAME

_IDENTITY_KEYS = ("task_id", "problem_id", "instance_id", TASK_INDEX_KEY_NAME)
_ROUTING_KEYS = frozenset({AGENT_REF_KEY_NAME, TASK_SOURCE_KEY_NAME, SKILLS_REF_KEY_NAME})


def materialize_task(row: Mapping[str, Any], *, taskset: str, task_index: int | None = None) -> dict[str, Any]:
    """Return a row as a task of `taskset`; routing fields and fields of the run stay beside its input.

    The id is the first of `task_id`, `problem_id`, `instance_id` and the task index that the row has, else
    `task_index`.

    Raises:
        ValueError: the row has no id.
    """
    task_id = next((row[key] for key in _IDENTITY_KEYS if row.get(key) is not None), task_index)
    if task_id is None:
        raise ValueError(f"a row of {taskset} has none of {', '.join(_IDENTITY_KEYS)}")
    outside = {key: value for key, value in row.items() if key in _ROUTING_KEYS or key.startswith("_ng_")}
    task_input = {key: value for key, value in row.items() if key not in outside}
    return {"task_id": {"taskset": taskset, "task_id": str(task_id)}, "task_input": task_input, **outside}
