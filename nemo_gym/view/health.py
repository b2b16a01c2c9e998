"""Findings about a run that a reader should know before the score: failures, cut-off answers, tasks without signal."""

from typing import Any

ERROR, WARNING, INFO, OK = "error", "warning", "info", "ok"
FAILED_SHARE = 0.01
"""From this share on, failures are an error instead of a warning."""
CUT_OFF_SHARE = 0.02
NO_ANSWER_SHARE = 0.05
UNREWARDED_SHARE = 0.05
_CONDITIONS = {"tool_errors": "tool_errors > 0", "unrewarded": "has_expected == 1 and reward <= 0"}
FEW_TASKS = 30
_LIMIT_NAMES = {"steps": "step", "tokens": "token", "context_length": "context"}


def find_problems(statistics: dict[str, Any], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of a run, the worst first; each has the filter of its rollouts, if they have one."""
    findings = [*_failures(statistics), *_answers(statistics), *_data(statistics), *_plan(entry)]
    order = (ERROR, WARNING, INFO, OK)
    findings.sort(key=lambda finding: (order.index(finding["level"]), -finding.get("count", 0)))
    return findings or [{"level": OK, "title": "Nothing unusual", "detail": "All rollouts were scored."}]


def _failures(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    total = max(statistics["rollouts"], 1)
    findings = []
    for group in statistics["problems"]["failures"]:
        share, is_limit = group["count"] / total, group["outcome"] == "limit"
        server = f" at {group['whom']}" if group["whom"] else ""
        where = f'outcome == "{group["outcome"]}"' + "".join(
            f" and {name} == {quote(group[name])}" for name in ("kind", "whom") if group[name]
        )
        what = f"stopped at {limit_name(group['kind'])}" if is_limit else f"failed: {group['kind']}{server}"
        detail = "They are not scored and do not enter the mean." if is_limit else first_line(group["message"] or "")
        findings.append(
            {
                "level": ERROR if share >= FAILED_SHARE and not is_limit else WARNING,
                "title": f"{_rollouts(group['count'])} {what}",
                "detail": detail,
                "count": group["count"],
                "share": share,
                "where": where,
                **({"explain": group["kind"]} if group["kind"] else {}),
            }
        )
    return findings


def _answers(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    problems = statistics["problems"]
    scored = max(sum(one["count"] for one in statistics["outcomes"] if one["outcome"] == "scored"), 1)
    texts = (
        ("cut_off", CUT_OFF_SHARE, "were cut off", "The answer reached a token limit: raise max_output_tokens."),
        ("no_answer", NO_ANSWER_SHARE, "have no extracted answer", "The verifier found no answer to compare."),
        (
            "unrewarded",
            UNREWARDED_SHARE,
            "with reward 0 or less contain the expected answer",
            "Look at these first: the extraction or the verifier may be too strict.",
        ),
        ("refused", 0.01, "were refused by the model", "The last item of the response is a refusal."),
        ("tool_errors", 0.01, "saw an exception of a tool", "The environment raised; the model saw it as output."),
        ("masked", 0.0, "are masked", "Their reward measures nothing, so it enters no mean."),
    )
    findings = []
    for name, threshold, text, detail in texts:
        count = problems[name]
        if count:
            level = WARNING if count / scored >= threshold else INFO
            where = f'outcome == "scored" and {_CONDITIONS.get(name, f"{name} == 1")}'
            title = f"{_rollouts(count)} {text}"
            share = count / scored
            findings.append(
                {"level": level, "title": title, "detail": detail, "count": count, "share": share, "where": where}
            )
    return findings


def _data(statistics: dict[str, Any]) -> list[dict[str, Any]]:
    reward, findings = statistics["reward"], []
    if reward["n"] and reward["tasks"] < FEW_TASKS:
        detail = "The interval is wide: a difference of some points may be chance."
        findings.append({"level": INFO, "title": f"Only {reward['tasks']} tasks are scored", "detail": detail})
    if reward["n"] > 1 and reward.get("min") == reward.get("max"):
        detail = "Check the verifier: it may not read the answer."
        findings.append({"level": WARNING, "title": f"Every reward is {reward['min']:g}", "detail": detail})
    return findings


def _plan(entry: dict[str, Any]) -> list[dict[str, Any]]:
    if entry["state"] != "interrupted" or entry["planned"] is None:
        return []
    missing = entry["planned"] - entry["rollouts"]
    title = f"{missing:,} of {entry['planned']:,} planned rollouts did not run"
    return [{"level": WARNING, "title": title, "detail": "Resume the run to complete it.", "count": missing}]


def _rollouts(count: int) -> str:
    return f"{count:,} rollout{'' if count == 1 else 's'}"


def limit_name(kind: str) -> str:
    """Return a limit of rollouts in words."""
    return f"the {_LIMIT_NAMES.get(kind, kind.replace('_', ' '))} limit" if kind else "a limit"


def first_line(text: str, longest: int = 300) -> str:
    """Return the first line of a text, cut if it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def quote(text: str) -> str:
    """Return a text as a value in a filter."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
