"""The verdict of a rollout: reward and its components, answers, reason, judges, limits, and what is recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nemo_gym.metrics.answer_totals import EXTRACTED_NAMES
from nemo_gym.view.conversation import event_text, read_events, read_judgements
from nemo_gym.view.health import limit_name
from nemo_gym.view.table_row import (
    EXPECTED_NAMES,
    LABEL_NAMES,
    METADATA_NAMES,
    RULE_NAMES,
    SCORED,
    reward_components,
)
from nemo_gym.wire.stored_rollout import REWARD_KEY, WEIGHTS_KEY, StoredRollout, finite_float

WHY_NAMES = ("explanation", "reason", "why", "feedback", "verdict_reason", "failure_reason", "judge_reason")
LONGEST_VALUE = 4000
MAX_RECORDED = 100
_CONVERSATION = frozenset({"responses_create_params", "response"})
_ELSEWHERE = _CONVERSATION | {REWARD_KEY, WEIGHTS_KEY, "agent_ref", *LABEL_NAMES, *METADATA_NAMES}


def read_verdict(
    record: Mapping[str, Any],
    facts: Mapping[str, Any],
    repeats: Sequence[Mapping[str, Any]],
    run: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the verdict pane of a rollout; `run` is the entry of its run, `repeats` the rollouts of its task."""
    fields = {name: value for name, value in record.items() if not name.startswith("_ng_") and name not in _ELSEWHERE}
    verdict: dict[str, Any] = {
        "reward": facts["reward"],
        "scale": run["scale"],
        "headline": headline(facts, run["scale"]),
        "mean_of_run": run["reward"]["mean"],
    }
    rewards = [repeat["reward"] for repeat in repeats if repeat["reward"] is not None and not repeat["masked"]]
    if rewards:
        verdict["mean_of_task"] = sum(rewards) / len(rewards)
    if facts["outcome"] == SCORED and (components := _components(record)):
        verdict["components"] = components
    for name, names in (("extracted", EXTRACTED_NAMES), ("expected", EXPECTED_NAMES), ("rule", RULE_NAMES)):
        key = next((key for key in names if key in record and (record[key] is not None or name == "extracted")), None)
        if key is not None:
            verdict[name] = cut_value(fields.pop(key, record[key]))
    verdict |= _extraction(record, facts, repeats)
    why = next((name for name in WHY_NAMES if isinstance(record.get(name), str) and record[name].strip()), None)
    if why is not None:
        verdict["why"] = cut_value(fields.pop(why))
    if judge := read_judgements(record):
        verdict["judge"] = judge
        fields = {name: value for name, value in fields.items() if "judge" not in name or not isinstance(value, list)}
    if limits := _limits(record, facts, run):
        verdict["limits"] = limits
    recorded = {
        name: value
        for name, value in fields.items()
        if value is not None and not (isinstance(value, dict) and REWARD_KEY in name)
    }
    verdict["recorded"] = {name: cut_value(value) for name, value in list(recorded.items())[:MAX_RECORDED]}
    verdict["internal"] = {
        name: cut_value(value) for name, value in record.items() if name.startswith("_ng_") or name == "agent_ref"
    }
    return verdict


def headline(facts: Mapping[str, Any], scale: Sequence[float]) -> str:
    """Return the verdict in words."""
    if facts["outcome"] == "limit":
        return f"Stopped at {limit_name(facts['kind'])}"
    if facts["outcome"] != SCORED or facts["reward"] is None:
        return f"Failed: {facts['kind']}" if facts["kind"] else "Failed"
    low, high = scale
    reward = facts["reward"]
    if reward >= min(1.0, high):
        return "Correct" if reward == 1 else "Full reward"
    if facts["no_answer"]:
        return "No answer could be extracted"
    if facts["cut_off"]:
        return "Cut off before an answer" if reward <= max(0.0, low) else "Cut off, partial credit"
    if reward <= max(0.0, low):
        return "Wrong answer" if facts["extracted"] else "Not solved"
    return "Wrong answer, partial credit" if facts["extracted"] else "Partial credit"


def cut_value(value: Any, longest: int = LONGEST_VALUE) -> Any:
    """Return a value; one whose JSON is long becomes the beginning of its text."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = orjson.dumps(value, default=str).decode("utf-8", errors="replace")
        except (TypeError, ValueError, RecursionError):
            text = value = str(value)
    return value if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _components(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the reward with their weights, where recorded."""
    weights = record.get(WEIGHTS_KEY)
    weights = weights if isinstance(weights, dict) else {}
    parts = []
    for name, value in reward_components(record).items():
        weight = finite_float(weights.get(name))
        parts.append({"name": name, "value": value, **({"weight": weight} if weight is not None else {})})
    return parts


def _extraction(
    record: Mapping[str, Any], facts: Mapping[str, Any], repeats: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the last event that contains the extracted answer, and the repeats with the same answer."""
    extracted = facts["extracted"]
    if not extracted:
        return {}
    answer: dict[str, Any] = {}
    total, events = read_events(record)
    for event in reversed(events[-50:]):
        if event["kind"] == "message" and event["side"] == "came" and extracted in event_text(record, event["number"]):
            answer["extracted_event"] = event["number"]
            break
    same = [one["rollout"] for one in repeats if one["extracted"] == extracted and one["rollout"] != facts["rollout"]]
    return {**answer, **({"same_answer": same[:64]} if same else {})} if total else {}


def _limits(record: Mapping[str, Any], facts: Mapping[str, Any], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how much of each limit the rollout used, where the limit is known."""
    limits = run.get("limits") or {}
    request = StoredRollout(record).request
    candidates = (
        ("Output tokens", facts["tokens_out"], request.get("max_output_tokens"), "tokens"),
        ("Steps", facts["turns"], limits.get("max_steps_per_rollout"), "turns"),
        ("Tokens", facts["tokens_in"] + facts["tokens_out"], limits.get("max_tokens_per_rollout"), "tokens"),
        ("Time", facts["seconds"], limits.get("rollout_timeout_seconds"), "s"),
    )
    return [
        {"name": name, "used": used, "limit": limit, "unit": unit}
        for name, used, limit, unit in candidates
        if used is not None and isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    ]
