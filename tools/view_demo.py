"""Runs with realistic, made-up content, for pictures and browser tests of the viewer. No model produced any of it."""

import json
import os
import random
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    NG_PHASES_KEY,
    NG_SECONDS_KEY,
    NG_TURN_SECONDS_KEY,
    NG_TURNS_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.rollouts.run_files import failures_path_for, live_path_for, lock_path_for, run_path_for
from nemo_gym.rollouts.run_folders import RunLabels
from nemo_gym.wire.stored_rollout import WEIGHTS_KEY
from tools.view_demo_tasks import SPECIAL_TASK, DemoTask, demo_task, special_conversation

MODEL = "qwen3-32b"
REPEATS = 8
DEMO_TASKS = 96
LIVE_MINUTES = 46
"""Age of the run in progress."""
STARTED = datetime(2026, 11, 16, 22, 4, tzinfo=UTC)
FAILURES = (
    ("model_refused", "model", "policy_model", 401, "Incorrect API key provided."),
    ("timeout", "verify", "math_with_code", None, "the verifier did not answer within 120 s"),
    ("tool_error", "tools", "execute_python", None, "ZeroDivisionError: division by zero"),
)
FAILED_SHARE = LIMIT_SHARE = 0.02
COMMAND = (
    "gym eval run --config configs/nightly_mix.yaml --model-type vllm_model --num-repeats 8 --temperature 0.7"
    " --top-p 0.95 --max-output-tokens 8192 --output results/nightly-mix/rollouts.jsonl"
)
PRICES = {MODEL: {"input": 0.3, "output": 1.2, "cached_input": 0.05}}


def write_demo_runs(folder: Path, tasks: int = DEMO_TASKS) -> list[Path]:
    """Write a finished run, its baseline and a run in progress below `folder`; return their outputs."""
    output = write_demo_run(folder / "nightly-mix", tasks, skill=0.58, seed=1)
    baseline = write_demo_run(
        folder / "nightly-mix-baseline", tasks, skill=0.49, seed=2, start=STARTED - timedelta(days=1)
    )
    live = write_live_run(folder / "smoke", tasks)
    return [output, baseline, live]


def write_demo_run(
    folder: Path, tasks: int, *, skill: float, seed: int, start: datetime = STARTED, done: float = 1.0
) -> Path:
    """Write one run with its side files; `skill` is the chance of a correct answer, `done` the share that has ended."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "rollouts.jsonl"
    scored, failed = [], []
    for task in range(int(tasks * done)):
        for repeat in range(REPEATS):
            record = demo_rollout(demo_task(task), task, repeat, chance, skill)
            (failed if NG_FAILURE_CLASS_KEY in record else scored).append(record)
    _write_lines(output, scored)
    _write_lines(failures_path_for(output), failed)
    planned = {"count": tasks * REPEATS, "tasks": tasks}
    sampling = {"temperature": 0.7, "top_p": 0.95, "max_output_tokens": 8192}
    identity = {
        "started_at": start.isoformat(),
        "planned": planned,
        "plan": {"responses_create_params": sampling, "num_repeats": REPEATS},
        "limits": {"rollout_timeout_seconds": 7200, "max_steps_per_rollout": 20},
        "code": {"nemo-gym": "0.6.0", "python": "3.12.7"},
        "input": {"name": "nightly_mix.jsonl"},
        "rows": "blake2b:6f6b99a3d1f7",
    }
    run_path_for(output).write_text(json.dumps(identity))
    RunLabels(
        environment="nightly mix", model=MODEL, name=folder.name, tags=["nightly"], command=COMMAND, prices=PRICES
    ).write(output)
    ended = min(start + timedelta(minutes=97), datetime.now(UTC)).timestamp()
    for path in (output, failures_path_for(output)):
        os.utime(path, (ended, ended))
    return output


def write_live_run(folder: Path, tasks: int) -> Path:
    """Write a run of which a third has ended; its lock names this process, so that the viewer sees it running."""
    now = datetime.now(UTC)
    started = now - timedelta(minutes=LIVE_MINUTES)
    output = write_demo_run(folder, tasks, skill=0.55, seed=3, start=started, done=0.36)
    lock_path_for(output).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    write_live_state(output, tasks, started)
    return output


def write_live_state(output: Path, tasks: int, started: datetime) -> None:
    """Write what a collector tells about its run while it runs."""
    now, planned = datetime.now(UTC), tasks * REPEATS
    done = sum(path.read_bytes().count(b"\n") for path in (output, failures_path_for(output)))
    waits = (
        (34, 2, "math_with_code", 252.0, "policy_model /v1/responses", "rate limited (429), retry 3 after 8 s"),
        (36, 0, "workplace_assistant", 170.0, "workplace_assistant /email_search_emails", None),
        (37, 1, "bird_sql", 91.0, "bird_sql /verify", None),
        (38, 3, "math_with_code", 58.0, "policy_model /v1/responses", "rate limited (429), waits for a slot"),
    )
    oldest = [
        {"task": task, "rollout": repeat, "agent": agent, "seconds": seconds, "waits_for": waits_for}
        | ({"reason": reason} if reason else {})
        for task, repeat, agent, seconds, waits_for, reason in waits
    ]
    live_path_for(output).write_text(
        json.dumps(
            {
                "updated_at": now.isoformat(),
                "started_at": started.isoformat(),
                "seconds": (now - started).total_seconds(),
                "planned": planned,
                "done": done,
                "running": 24,
                "queued": max(0, planned - done - 24),
                "rate": {"per_minute": 6.1, "earlier_per_minute": 6.6},
                "left": {"seconds": 4700.0, "low": 4100.0, "high": 6200.0},
                "minutes": [
                    {"minute": minute, "done": 4 + (minute * 7) % 5, "rejected": minute > 38}
                    for minute in range(LIVE_MINUTES)
                ],
                "oldest": oldest,
                "waiting": {
                    "policy_model /v1/responses": 15,
                    "workplace_assistant /email_search_emails": 5,
                    "bird_sql /verify": 3,
                    "agent math_with_code": 1,
                },
                "rejections": [{"server": "policy_model", "status": 429, "rollouts": 9}],
            }
        )
    )


def demo_rollout(task: DemoTask, number: int, repeat: int, chance: random.Random, skill: float) -> dict[str, Any]:
    """Return the record of one rollout: scored, failed, or stopped at a limit."""
    ids = {TASK_INDEX_KEY_NAME: number, ROLLOUT_INDEX_KEY_NAME: repeat}
    is_special = number == SPECIAL_TASK and repeat == 3
    is_right = not is_special and chance.random() < skill + task.ease - 0.5
    has_partial = is_special or (not is_right and chance.random() < 0.35)
    answer = "(46, 22727)" if is_special else task.answer if is_right else task.wrong_answer(chance)
    turns = special_conversation() if is_special else task.conversation(answer)
    lot = 1.0 if is_special else chance.random()
    if lot < FAILED_SHARE:
        turns = turns[: max(1, len(turns) - 1)]
    record = {
        "responses_create_params": task.request(),
        "response": _response(turns, chance, repeat),
        AGENT_REF_KEY_NAME: {"type": "responses_api_agents", "name": task.agent},
        "metadata": {"difficulty": task.difficulty},
        **_times(turns, chance),
        **ids,
    }
    if lot < FAILED_SHARE:
        return _failure(record, chance)
    if lot < FAILED_SHARE + LIMIT_SHARE:
        detail = {"kind": "limit", "which": "tokens", "phase": "model", "message": "8,192 output tokens were used"}
        return {**record, NG_FAILURE_CLASS_KEY: "limit", NG_FAILURE_DETAIL_KEY: detail}
    return {**record, **_verdict(task, answer, is_right=is_right, has_partial=has_partial)}


def _verdict(task: DemoTask, extracted: str, *, is_right: bool, has_partial: bool) -> dict[str, Any]:
    """Return what the verifier adds to a record."""
    components = {"correct": float(is_right), "format": float(is_right or has_partial), "tool_use": float(has_partial)}
    verdict: dict[str, Any] = {
        "reward": 1.0 if is_right else 0.35 if has_partial else 0.0,
        "expected_answer": task.answer,
        "extracted_answer": extracted,
        "extraction_rule": task.rule,
        "reward_components": components,
        WEIGHTS_KEY: {"correct": 0.65, "format": 0.15, "tool_use": 0.2},
        "outcome": "correct" if is_right else "incorrect",
    }
    if is_right or task.agent not in ("math_with_code", "equivalence_judge") or not extracted:
        return verdict
    question = f"Do both answers state the same?\n\nAnswer A: {extracted}\nAnswer B: {task.answer}"
    answered = "The answers differ, so they are not equivalent. [[A!=B]]"
    judge = {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "response": _message_response(answered),
        "verdict_label": "[[A!=B]]",
    }
    why = f"{extracted} is not {task.answer}. Symbolic comparison gave no match, so the judge was asked in both orders."
    return {**verdict, "explanation": why, "judge_evaluations": [judge, judge]}


def _failure(record: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return the record of a rollout as one that failed; what fails before the verification is not verified."""
    kind, phase, server, status, message = chance.choice(FAILURES)
    if phase != "verify":
        phases = {**record[NG_PHASES_KEY], "verify": 0.0}
        record |= {NG_PHASES_KEY: phases, NG_SECONDS_KEY: sum(phases.values())}
    detail: dict[str, Any] = {"kind": kind, "phase": phase, "whom": server, "message": message}
    detail |= {"status": status} if status else {}
    return {**record, NG_FAILURE_CLASS_KEY: kind, NG_FAILURE_DETAIL_KEY: detail}


def _message_response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"output": [{"type": "message", "role": "assistant", "content": content}]}


def _response(turns: list[list[dict[str, Any]]], chance: random.Random, repeat: int) -> dict[str, Any]:
    """Return the response of all turns; repeat 3 has token ids, as records for training do."""
    items = [dict(item) for turn in turns for item in turn]
    if repeat == 3:
        _add_tokens(items, chance)
    rows = _token_counts(turns)
    usage = {
        "input_tokens": sum(row[1] for row in rows),
        "output_tokens": sum(row[3] for row in rows),
        "input_tokens_details": {"cached_tokens": sum(row[2] for row in rows)},
        "output_tokens_details": {"reasoning_tokens": sum(row[4] for row in rows)},
    }
    return {"model": MODEL, "status": "completed", "output": items, "usage": usage}


def _token_counts(turns: list[list[dict[str, Any]]]) -> list[list[int]]:
    """Return for each turn: items of the model, tokens in, cached, out and of reasoning."""
    rows, read = [], 167
    for turn in turns:
        own = [item for item in turn if item["type"] != "function_call_output"]
        written = sum(len(json.dumps(item)) // 4 for item in own)
        reasoning = sum(len(json.dumps(item)) // 4 for item in own if item["type"] == "reasoning")
        rows.append([len(own), read, read * 2 // 3 if rows else 0, written, reasoning])
        read += len(json.dumps(turn)) // 3
    return rows


def _times(turns: list[list[dict[str, Any]]], chance: random.Random) -> Mapping[str, Any]:
    """Return the seconds of the rollout by phase and by turn."""
    rows = _token_counts(turns)
    seconds = [[row[3] / 45 * chance.uniform(0.7, 1.4), chance.uniform(0.2, 1.6)] for row in rows]
    seconds[-1][1] = 0.0
    phases = {
        "queue": chance.uniform(0.1, 0.6),
        "seed_session": 0.05,
        "model": sum(model for model, _ in seconds),
        "tools": sum(tools for _, tools in seconds),
        "verify": chance.uniform(0.3, 3.0),
        "agent": 0.08,
    }
    return {
        NG_SECONDS_KEY: sum(phases.values()),
        NG_PHASES_KEY: phases,
        NG_TURNS_KEY: rows,
        NG_TURN_SECONDS_KEY: seconds,
    }


def _add_tokens(items: list[dict[str, Any]], chance: random.Random) -> None:
    """Add made-up token ids and log-probabilities to the items of the model."""
    sequence = [chance.randrange(30_000) for _ in range(120)]
    for item in items:
        if item["type"] == "function_call_output":
            sequence += [chance.randrange(30_000) for _ in range(40)]
            continue
        generated = [chance.randrange(30_000) for _ in range(len(json.dumps(item)) // 4)]
        surprises = [
            -abs(chance.gauss(0, 0.12)) if chance.random() < 0.8 else -chance.uniform(0.4, 2.6) for _ in generated
        ]
        item |= {
            "prompt_token_ids": list(sequence),
            "generation_token_ids": generated,
            "generation_log_probs": surprises,
        }
        sequence += generated


def _write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
