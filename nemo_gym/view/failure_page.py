"""The failure of a rollout for its page: the innermost cause, where it happened, what to do, and who shares it."""

import re
from collections.abc import Mapping
from typing import Any

from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.health import first_line, limit_name, quote
from nemo_gym.wire.stored_rollout import StoredRollout

LONGEST_MESSAGE = 20_000
MAX_AGENTS = 20
_PATH_IN_MESSAGE = re.compile(r"\b(?:(GET|POST) )?(/(?:v1/[a-z_]+(?:/[a-z_]+)*|verify|seed_session|run))\b")
_CALLS_OF_PHASES = {"model": "/v1/responses", "verify": "/verify", "dispatch": "/run"}
_TEXTS = {
    "model_refused": "The model endpoint refused the request",
    "model_unreachable": "The model endpoint cannot be reached",
    "model_bad_reply": "The model endpoint gave no usable answer",
    "rate_limited": "The model endpoint limits the rate of calls",
    "agent_error": "The agent failed",
    "tool_error": "A tool failed",
    "verifier_error": "The verifier failed",
    "judge_failed": "The judge failed",
    "invalid_reward": "The verifier gave an invalid reward",
    "timeout": "Not done in time",
    "server_died": "A server process ended",
    "internal": "The collector failed",
}
_STATUS_TEXTS = {
    401: "the key is wrong or missing",
    403: "the account may not use this model",
    404: "there is no such model or address",
    429: "too many requests",
}
_STATUS_ADVICE = {
    401: "Put a valid key into policy_api_key in env.yaml, then resume.",
    403: "Ask the provider for access to the model, or choose another one, then resume.",
    404: "Check the name of the model and policy_base_url, then resume.",
    429: "Lower --concurrency or ask the provider for a higher limit, then resume.",
}
_LIMIT_TEXTS = {
    "steps": "The rollout used all its model turns.",
    "tokens": "The rollout used all its tokens.",
    "context_length": "The conversation is longer than the model can read.",
}


def describe_failure(
    run: RunDatabase,
    record: Mapping[str, Any],
    facts: Mapping[str, Any],
    entry: Mapping[str, Any],
    advice: Mapping[str, str],
) -> dict[str, Any] | None:
    """Return the failure of a rollout, None for a scored one. `entry` describes its run; `advice` is by kind."""
    if facts["outcome"] == "scored":
        return None
    stored = StoredRollout(record)
    detail = stored.failure
    phase = _text(detail.get("phase"))
    failure: dict[str, Any] = {
        "outcome": facts["outcome"],
        "kind": facts["kind"],
        "phase": phase,
        "server": facts["whom"],
        "message": _text(detail.get("message"))[:LONGEST_MESSAGE],
        "same_cause": _same_cause(run, facts),
        "kept": {"turns": facts["turns"], "tokens_in": facts["tokens_in"], "tokens_out": facts["tokens_out"]},
        "retryable": not stored.is_terminal,
        "counted": stored.is_counted,
        "stays": entry["outcome_counts"]["scored"],
        "runs_again": max(0, (entry["planned"] or entry["rollouts"]) - entry["outcome_counts"]["scored"]),
    }
    failure |= _limit(facts, detail) if facts["outcome"] == "limit" else _cause(facts, detail, failure["message"])
    failure["path"] = _server_path(facts, phase, failure["message"])
    if facts["turns"] or phase == "model":
        failure["turn"] = facts["turns"] + (phase == "model")
    if isinstance(detail.get("status"), int):
        failure["status"] = detail["status"]
    seconds = detail.get("seconds") if isinstance(detail.get("seconds"), int | float) else facts["seconds"]
    if seconds is not None:
        failure["seconds"] = seconds
    if facts["kind"] in advice:
        failure |= {"advice": " ".join(advice[facts["kind"]].split()), "explain": facts["kind"]}
    if failure.get("status") in _STATUS_ADVICE:
        failure["advice"] = _STATUS_ADVICE[failure["status"]]
    if entry.get("resume_command"):
        failure["resume_command"] = entry["resume_command"]
    traceback = record.get("traceback") or detail.get("traceback")
    if isinstance(traceback, str) and traceback:
        failure["traceback"] = traceback[:LONGEST_MESSAGE]
    return failure


def _cause(facts: Mapping[str, Any], detail: Mapping[str, Any], message: str) -> dict[str, Any]:
    """Return the cause in one line, and the innermost message if it says more."""
    inner = first_line(innermost_cause(message)) if message else ""
    status = detail.get("status")
    text = _TEXTS.get(facts["kind"], facts["kind"].replace("_", " ").capitalize() or "The rollout failed")
    if isinstance(status, int):
        text = f"{text}: {status}" + (f", {_STATUS_TEXTS[status]}" if status in _STATUS_TEXTS else "")
    elif inner:
        text = f"{text}: {inner}"
    return {"cause": text, **({"detail": inner} if inner and inner not in text else {})}


def _limit(facts: Mapping[str, Any], detail: Mapping[str, Any]) -> dict[str, Any]:
    name = facts["kind"]
    limit: dict[str, Any] = {"name": name}
    if isinstance(detail.get("most"), int):
        limit["value"] = detail["most"]
    text = _LIMIT_TEXTS.get(name, "The rollout reached a limit.")
    return {"cause": f"Stopped at {limit_name(name)}", "detail": text, "limit": limit}


def _server_path(facts: Mapping[str, Any], phase: str, message: str) -> list[dict[str, Any]]:
    """Return the servers from the run to the one that failed, and the call that failed there."""
    names = list(dict.fromkeys(filter(None, (facts["agent"], facts["whom"]))))
    path: list[dict[str, Any]] = [{"name": "run"}]
    path += [{"name": name, **({"guilty": True} if name == (facts["whom"] or names[-1]) else {})} for name in names]
    match = _PATH_IN_MESSAGE.search(message)
    call = match[2] if match else _CALLS_OF_PHASES.get(phase)
    return [*path, *([{"name": f"POST {call}"}] if call and names else [])]


def _same_cause(run: RunDatabase, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Count the rollouts that ended with the same outcome, kind and server, by agent."""
    names = [name for name in ("outcome", "kind", "whom") if facts[name]]
    where = " and ".join(f"{name} == {quote(facts[name])}" for name in names)
    rule = " AND ".join(f"{name} = ?" for name in names)
    query = f"SELECT agent, count(*) FROM rollouts WHERE current AND {rule} GROUP BY 1 ORDER BY 2 DESC"
    with run.connection() as database:
        counts = database.execute(query, [facts[name] for name in names]).fetchall()
    agents = [{"agent": agent, "count": count} for agent, count in counts[:MAX_AGENTS]]
    return {"count": sum(count for _, count in counts), "where": where, "agents": agents}


def _text(value: Any) -> str:
    return "" if value is None else str(value)
