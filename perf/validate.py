"""Measure the CPU time of validating a NeMoGymResponse.

    python perf/validate.py

Two payloads: 300 mixed output items (limit 3 ms), and 30 items that carry 20,000 token ids each (limit 15 ms).
"""

import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from nemo_gym.openai_utils import NeMoGymResponse

LIMITS_MS = {"300 mixed items": 3.0, "30 items x 20,000 token ids": 15.0}


def response(output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "created_at": 1700000000.0,
        "model": "policy",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _message(number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "The answer is 42. " * 20, "annotations": []}],
    }


def mixed_items(count: int = 300) -> dict[str, Any]:
    """Return an agent's conversation: reasoning, tool call, tool result and message, repeated."""
    kinds: list[Callable[[int], dict[str, Any]]] = [
        lambda n: {
            "id": f"rs_{n}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Let me look. " * 20}],
        },
        lambda n: {
            "id": f"fc_{n}",
            "call_id": f"call_{n}",
            "type": "function_call",
            "name": "lookup",
            "arguments": '{"city": "Bern"}',
            "status": "completed",
        },
        lambda n: {"call_id": f"call_{n}", "type": "function_call_output", "output": '{"temperature": 21}'},
        _message,
    ]
    return response([kinds[n % len(kinds)](n) for n in range(count)])


def token_items(count: int = 30, prompt: int = 20_000, generated: int = 500) -> dict[str, Any]:
    """Return a long conversation collected for training, in which every turn carries its whole prompt."""
    draw = random.Random(0)
    tokens: dict[str, Callable[[], list[Any]]] = {
        "prompt_token_ids": lambda: [draw.randrange(150_000) for _ in range(prompt)],
        "generation_token_ids": lambda: [draw.randrange(150_000) for _ in range(generated)],
        "generation_log_probs": lambda: [-draw.random() for _ in range(generated)],
    }
    return response([_message(n) | {name: make() for name, make in tokens.items()} for n in range(count)])


def _cpu_ms(payload: dict[str, Any], runs: int) -> list[float]:
    NeMoGymResponse(**payload)  # the first one builds the validator
    times = []
    for _ in range(runs):
        start = time.process_time_ns()
        NeMoGymResponse(**payload)
        times.append((time.process_time_ns() - start) / 1e6)
    return times


def measure(runs: int = 30) -> dict[str, dict[str, float]]:
    """Return best and median CPU milliseconds and the limit of each payload."""
    payloads = dict(zip(LIMITS_MS, (mixed_items(), token_items()), strict=True))
    figures = {}
    for name, payload in payloads.items():
        times = _cpu_ms(payload, runs)
        figures[name] = {
            "best_ms": round(min(times), 3),
            "median_ms": round(statistics.median(times), 3),
            "limit_ms": LIMITS_MS[name],
        }
    return figures


def main() -> None:
    figures = measure()
    print(f"{'validate NeMoGymResponse':<32}{'best':>10}{'median':>10}{'limit':>10}   (CPU ms)")
    for name, figure in figures.items():
        print(f"{name:<32}{figure['best_ms']:>10.3f}{figure['median_ms']:>10.3f}{figure['limit_ms']:>10.1f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
