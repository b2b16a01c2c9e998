"""Rollouts for the tests of the viewer."""

import json
from pathlib import Path
from typing import Any


def record(
    task: int = 0, repeat: int = 0, reward: float = 1.0, answer: str = "It is 4.", **more: Any
) -> dict[str, Any]:
    """A scored rollout with one tool call."""
    return {
        "responses_create_params": {"input": [{"role": "user", "content": f"What is {task} + 1?"}]},
        "response": {
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "let me think"}]},
                {"type": "function_call", "name": "add", "call_id": "c1", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "c1", "output": "4"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]},
            ],
            "usage": {"input_tokens": 10, "output_tokens": 5},
        },
        "reward": reward,
        "expected_answer": task + 1,
        "extracted_answer": str(task + 1) if reward else "nothing",
        "agent_ref": {"name": "the_agent"},
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        **more,
    }


def timed_record(task: int, seconds: float, **phases: float) -> dict[str, Any]:
    """A scored rollout that took so long, and where the time went."""
    spent = {"queue": 0.0, "seed_session": 0.0, "model": 0.0, "tools": 0.0, "verify": 0.0, "agent": 0.0, **phases}
    return record(task, _ng_seconds=seconds, _ng_phases=spent)


def failure(task: int = 0, repeat: int = 0, kind: str = "timeout", message: str = "too slow") -> dict[str, Any]:
    """A rollout without a reward."""
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "_ng_failure_class": kind,
        "_ng_failure": {"kind": kind, "whom": "policy_model", "message": message},
    }


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def append(path: Path, *records: Any) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in records)
