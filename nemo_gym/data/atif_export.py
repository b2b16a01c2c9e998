"""Export rollouts as ATIF trajectories: a folder with one JSON file per rollout and a manifest."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.config_types import BaseNeMoGymCLIConfig
from nemo_gym.errors import ConfigError
from nemo_gym.journal import read_rows
from nemo_gym.keys import NG_AGENT_OBSERVATIONS_KEY, NG_TURNS_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.atif import (
    AtifAgent,
    AtifError,
    AtifFinalMetrics,
    AtifMetrics,
    AtifObservation,
    AtifResult,
    AtifStep,
    AtifSubagentRef,
    AtifToolCall,
    AtifTrajectory,
)
from nemo_gym.wire.stored_rollout import RolloutKey, Row, StoredRollout

MANIFEST = "manifest.jsonl"
MAX_LISTED_ERRORS = 20
_MODEL_ITEMS = ("reasoning", "function_call")


class ExportAtifConfig(BaseNeMoGymCLIConfig):
    """Export rollouts as ATIF trajectories."""

    rollouts_jsonl_fpath: str = Field(description="The rollouts to export.")
    output_dirpath: str = Field(description="New folder for the trajectories and their manifest.")
    session_id: str | None = Field(default=None, description="Id of the run in every trajectory; default: the file.")
    agent_version: str = Field(default="unknown", min_length=1, description="Version of the agent.")


def export_trajectories(config: ExportAtifConfig) -> int:
    """Write a trajectory of each rollout and return their number; the folder appears when it is complete.

    Raises:
        ConfigError: the folder exists.
        DataError: rollouts cannot be expressed, which are listed; nothing was written.
    """
    target, source = Path(config.output_dirpath), Path(config.rollouts_jsonl_fpath)
    if target.exists():
        raise ConfigError("the folder exists", where=str(target), fix="name a new one with --output")
    target.parent.mkdir(parents=True, exist_ok=True)
    session_id = config.session_id or source.parent.name or source.stem
    problems: list[str] = []
    count = 0
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with (folder / MANIFEST).open("w", encoding="utf-8") as manifest:
            for row in read_rows(source):
                try:
                    manifest.write(json.dumps(_write(folder, row, session_id, config.agent_version)) + "\n")
                    count += 1
                except (AtifError, ValidationError, ValueError) as error:
                    problems.append(f"{_name(row)}: {getattr(error, 'problem', error)}")
        if problems or not count:
            listed = "\n  ".join(problems[:MAX_LISTED_ERRORS]) or "the file has no rollouts"
            raise DataError(f"{len(problems)} rollouts cannot be exported, nothing was written:\n  {listed}")
        folder.chmod(0o755)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return count


def _write(folder: Path, row: Row, session_id: str, version: str) -> dict[str, Any]:
    """Write the trajectory of a rollout and return its line of the manifest."""
    key = RolloutKey.of(row)
    content = trajectory_json(trajectory_of(row, session_id, version))
    path = folder / f"{key.task}-{key.rollout}.json"
    if path.exists():
        raise AtifError("the rollout occurs twice")
    path.write_bytes(content)
    indices = {TASK_INDEX_KEY_NAME: key.task, ROLLOUT_INDEX_KEY_NAME: key.rollout}
    return {"trajectory_path": path.name, **indices, "expected_sha256": hashlib.sha256(content).hexdigest()}


def trajectory_json(trajectory: AtifTrajectory) -> bytes:
    """Return the content of the file of a trajectory."""
    fields = trajectory.model_dump(mode="json", exclude_none=True)
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()


def trajectory_of(row: Mapping[str, Any], session_id: str, version: str = "unknown") -> AtifTrajectory:
    """Return a rollout as a trajectory.

    Raises:
        AtifError: it has an item that ATIF cannot express.
    """
    stored = StoredRollout(row)
    if not stored.output:
        raise AtifError("the rollout has no response")
    key = stored.key
    name = f"{session_id}:{key.task}:{key.rollout}"
    agent = AtifAgent(name=stored.agent or "agent", version=version, model_name=stored.model or None)
    agent.tool_definitions = [dict(tool) for tool in stored.request.get("tools") or () if isinstance(tool, Mapping)]
    subagents = list(_subagents(row, session_id, name, agent))
    prompt = [*_instructions(stored.request), *_input_items(stored.request.get("input"))]
    steps = _steps(prompt, stored.output, _turn_rows(row), stored.model or None)
    _add_times(steps, stored.captured_calls)
    spawned = {
        each.extra["nemo_gym"]["spawned_by_tool_call_id"]: each.trajectory_id for each in subagents if each.extra
    }
    for result in (each for step in steps if step.observation for each in step.observation.results):
        if result.source_call_id and (reference := spawned.get(result.source_call_id)):
            result.subagent_trajectory_ref = [AtifSubagentRef(trajectory_id=reference, session_id=session_id)]
    source = {"format": "rollouts.jsonl", "task_index": key.task, "rollout_index": key.rollout}
    facts = {"exporter": "nemo-gym", "source": source, "reward": stored.reward}
    return AtifTrajectory(
        session_id=session_id,
        trajectory_id=name,
        agent=agent,
        steps=steps,
        final_metrics=_final_metrics(stored, len(steps)),
        subagent_trajectories=subagents or None,
        extra={"nemo_gym": facts},
    )


def _instructions(request: Mapping[str, Any]) -> list[Any]:
    text = request.get("instructions")
    return [{"role": "system", "content": text}] if text else []


def _input_items(value: Any) -> list[Any]:
    return [{"role": "user", "content": value}] if isinstance(value, str) else list(value or ())


def _turn_rows(row: Mapping[str, Any]) -> list[list[int]]:
    turns = row.get(NG_TURNS_KEY)
    return turns if isinstance(turns, list) and all(isinstance(each, list) and each for each in turns) else []


def _is_from_model(item: Mapping[str, Any]) -> bool:
    return item.get("type") in _MODEL_ITEMS or item.get("role") == "assistant"


def _groups(items: Sequence[Any], turns: Sequence[Sequence[int]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the items of each model turn together with their outputs, and every other item alone.

    Without `turns`, or if they are those of another conversation, a turn is an unbroken sequence of items of the model.
    """
    if not all(isinstance(item, Mapping) for item in items):
        raise AtifError("an item is no object")
    is_counted = sum(turn[0] for turn in turns) == sum(map(_is_from_model, items))
    sizes = iter([turn[0] for turn in turns if turn[0]] if is_counted else [])
    group: list[Mapping[str, Any]] = []
    left = 0
    for item in items:
        if _is_from_model(item):
            begins = left == 0 if is_counted else not group or not _is_from_model(group[-1])
            if begins:
                if group:
                    yield group
                group, left = [], next(sizes, 0)
            left = max(left - 1, 0)
            group.append(item)
        elif str(item.get("type")).endswith("_output") and group:
            group.append(item)
        else:
            if group:
                yield group
            group = []
            yield [item]
    if group:
        yield group


def _steps(
    prompt: Sequence[Any], output: Sequence[Any], turns: Sequence[Sequence[int]], model: str | None
) -> list[AtifStep]:
    """Return the steps of a conversation; `turns` are the counts of the model turns in `output`."""
    steps: list[AtifStep] = []
    for group in _groups(prompt, []):
        steps.append(_step(len(steps) + 1, group, None, []))
    groups = list(_groups(output, turns))
    counts = [turn for turn in turns if turn[0]]
    is_counted = len(counts) == sum(_is_from_model(group[0]) for group in groups)
    rows = iter(counts if is_counted else [])
    for group in groups:
        row = next(rows, []) if _is_from_model(group[0]) else []
        steps.append(_step(len(steps) + 1, group, model, row))
    return steps


def _step(number: int, group: Sequence[Mapping[str, Any]], model: str | None, turn: Sequence[int]) -> AtifStep:
    first = group[0]
    if not _is_from_model(first):
        role = str(first.get("role"))
        source = "system" if role == "developer" else role
        if source not in ("system", "user"):
            raise AtifError(f"an item of type {first.get('type')!r} is no message")
        return AtifStep(step_id=number, source=source, message=_text(first.get("content")))  # type: ignore[arg-type]
    calls = [_tool_call(item) for item in group if item.get("type") == "function_call"]
    results = [
        AtifResult(source_call_id=str(item.get("call_id")), content=_text(item.get("output")))
        for item in group
        if str(item.get("type")).endswith("_output")
    ]
    thoughts = [_reasoning(item) for item in group if item.get("type") == "reasoning"]
    return AtifStep(
        step_id=number,
        source="agent",
        message="\n\n".join(_text(item.get("content")) for item in group if item.get("role") == "assistant"),
        model_name=model,
        reasoning_content="\n\n".join(thoughts) or None,
        tool_calls=calls or None,
        observation=AtifObservation(results=results) if results else None,
        metrics=_metrics(turn),
        llm_call_count=1,
    )


def _metrics(turn: Sequence[int]) -> AtifMetrics | None:
    if len(turn) < 5:
        return None
    _, read, cached, written, reasoning = turn[:5]
    extra = {"reasoning_tokens": reasoning} if reasoning else None
    return AtifMetrics(prompt_tokens=read, completion_tokens=written, cached_tokens=cached, extra=extra)


def _tool_call(item: Mapping[str, Any]) -> AtifToolCall:
    text = str(item.get("arguments") or "{}")
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    call = AtifToolCall(tool_call_id=str(item.get("call_id")), function_name=str(item.get("name")), arguments={})
    if isinstance(arguments, dict):
        call.arguments = arguments
    else:  # a mistake of the model, which the trajectory keeps
        call.extra = {"invalid_arguments": text}
    return call


def _reasoning(item: Mapping[str, Any]) -> str:
    parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
    return "\n\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _text(content: Any) -> str:
    """Return the text of a content.

    Raises:
        AtifError: it has other parts, which would need files.
    """
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise AtifError("a content has parts that are no text")
        texts.append(text)
    return "\n".join(texts)


def _add_times(steps: Iterable[AtifStep], calls: Sequence[Mapping[str, Any]]) -> None:
    """Set the times of agent steps, if there is one captured call for each of them."""
    turns = [step for step in steps if step.source == "agent" and step.model_name]
    times = [call.get("started_at") for call in calls]
    if len(turns) == len(times) and all(isinstance(time, int | float) for time in times):
        for step, time in zip(turns, times, strict=True):
            step.timestamp = datetime.fromtimestamp(float(time or 0), UTC).isoformat()


def _final_metrics(stored: StoredRollout, steps: int) -> AtifFinalMetrics:
    """Return the totals of a rollout, which include its sub-agents."""
    tokens = stored.tokens_by_kind()
    return AtifFinalMetrics(
        total_prompt_tokens=tokens.get("input"),
        total_completion_tokens=tokens.get("output"),
        total_cached_tokens=tokens.get("cached"),
        total_steps=steps,
    )


def _subagents(row: Mapping[str, Any], session_id: str, name: str, agent: AtifAgent) -> Iterator[AtifTrajectory]:
    """Yield the recorded runs of sub-agents, other attempts and the simulated user."""
    bundle = row.get(NG_AGENT_OBSERVATIONS_KEY)
    records = bundle.get("records") if isinstance(bundle, Mapping) else None
    facts = row.get("parallel")
    main = facts.get("chosen") if isinstance(facts, Mapping) else "root"
    for record in records if isinstance(records, list) else ():
        if (
            not isinstance(record, Mapping)
            or record.get("kind") != "agent_invocation"
            or not record.get("conversation")
        ):
            continue
        invocation = str(record.get("invocation_id"))
        if invocation == main or invocation.startswith(f"{main}-segment-"):
            continue
        own = {"invocation_id": invocation, "spawned_by_tool_call_id": record.get("spawned_by_tool_call_id")}
        yield AtifTrajectory(
            session_id=session_id,
            trajectory_id=f"{name}:{invocation}",
            agent=AtifAgent(name=invocation, version=agent.version, model_name=agent.model_name),
            steps=_steps([], record["conversation"], [], agent.model_name),
            extra={"nemo_gym": own},
        )


def _name(row: Mapping[str, Any]) -> str:
    return f"task {row.get(TASK_INDEX_KEY_NAME)}, rollout {row.get(ROLLOUT_INDEX_KEY_NAME)}"
