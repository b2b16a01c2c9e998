"""Read ATIF trajectories of any agent as rollouts whose responses can be verified."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.journal import read_rows
from nemo_gym.keys import AGENT_REF_KEY_NAME, RESPONSE_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.wire.atif import AtifError, AtifModel, AtifStep, AtifTrajectory, parse_strict_json
from nemo_gym.wire.stored_rollout import RolloutId, RolloutKey, Row

logger = logging.getLogger(__name__)

PROVENANCE_KEY = "_ng_atif_provenance"
"""In a verified record: the trajectory that its response is made of."""


class ManifestEntry(AtifModel):
    """One line of a manifest: which rollout a file is."""

    trajectory_path: str
    """Relative to the manifest, and below its folder."""
    task_index: int = Field(alias=TASK_INDEX_KEY_NAME, ge=0)
    rollout_index: int = Field(alias=ROLLOUT_INDEX_KEY_NAME, ge=0)
    expected_sha256: str | None = None


def write_rollouts(manifest: Path, inputs: Path, target: Path) -> int:
    """Write the trajectories of a manifest as rollouts, and return their number.

    Raises:
        AtifError: a trajectory is invalid, occurs twice or has no input row; nothing was written.
    """
    agents = {RolloutKey.of(row).rollout_id: row.get(AGENT_REF_KEY_NAME) for row in read_rows(inputs)}
    with whole_file(target) as file:
        count = 0
        for row in read_manifest(manifest, agents):
            file.write(json.dumps(row).encode() + b"\n")
            count += 1
        if not count:
            raise AtifError("the manifest has no trajectories", where=str(manifest))
    return count


def read_manifest(manifest: Path, agents: Mapping[RolloutId, Any]) -> Iterator[Row]:
    """Yield a record for each line of a manifest; `agents` has the agent of each planned rollout."""
    if not manifest.is_file():
        raise AtifError("there is no such manifest", where=str(manifest))
    seen: set[str] = set()
    for number, line in enumerate(manifest.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        where = f"{manifest}:{number}"
        try:
            entry = ManifestEntry.model_validate(parse_strict_json(line))
            row, marks = _read_entry(entry, manifest.parent, agents)
        except ValidationError as error:
            first = error.errors()[0]
            raise AtifError(f"{first['loc']}: {first['msg']}", where=where) from None
        except (AtifError, OSError) as error:
            raise AtifError(getattr(error, "problem", str(error)), where=where) from None
        if twice := seen & marks:
            raise AtifError(f"{min(twice)} occurs twice", where=where)
        seen |= marks
        yield row


def _read_entry(entry: ManifestEntry, folder: Path, agents: Mapping[RolloutId, Any]) -> tuple[Row, set[str]]:
    """Return the record of a trajectory, and what must occur once in a manifest."""
    path = (folder / entry.trajectory_path).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise AtifError(f"{entry.trajectory_path} is outside the folder of the manifest")
    if not path.is_file():
        raise AtifError(f"{entry.trajectory_path} is no file")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if entry.expected_sha256 is None:
        logger.warning("%s has no expected_sha256, so a change of it is not noticed", entry.trajectory_path)
    elif entry.expected_sha256 != digest:
        raise AtifError(f"{entry.trajectory_path} is not the file that the manifest names: its hash differs")
    key = entry.task_index, entry.rollout_index
    if key not in agents:
        raise AtifError(f"task {key[0]}, rollout {key[1]} belongs to no input row")
    trajectory = AtifTrajectory.model_validate_json(json.dumps(parse_strict_json(content)))
    extra = (trajectory.extra or {}).get("nemo_gym")
    source = extra.get("source") if isinstance(extra, Mapping) else None
    if isinstance(source, Mapping) and (source.get("task_index"), source.get("rollout_index")) != key:
        raise AtifError(f"{entry.trajectory_path} is a rollout of another task")
    provenance = {
        "trajectory_id": trajectory.trajectory_id,
        "session_id": trajectory.session_id,
        "source_sha256": digest,
        "schema_version": trajectory.schema_version,
        "projection_status": "complete",
    }
    row: Row = {TASK_INDEX_KEY_NAME: key[0], ROLLOUT_INDEX_KEY_NAME: key[1], PROVENANCE_KEY: provenance}
    row[RESPONSE_KEY_NAME] = response_of(trajectory, digest)
    if agents[key]:
        row[AGENT_REF_KEY_NAME] = agents[key]
    marks = {str(path), f"the content {digest}", f"task {key[0]}, rollout {key[1]}"}
    if trajectory.trajectory_id:
        marks.add(f"trajectory {trajectory.trajectory_id} of session {trajectory.session_id}")
    return row, marks


def response_of(trajectory: AtifTrajectory, digest: str) -> Row:
    """Return a trajectory as a response: what the agent wrote and its tools returned.

    Raises:
        AtifError: the trajectory has something that a response cannot express.
    """
    if trajectory.continued_trajectory_ref:
        raise AtifError("the trajectory is continued in another file")
    identity = trajectory.trajectory_id or digest
    first = next((index for index, step in enumerate(trajectory.steps) if step.source == "agent"), None)
    if first is None:
        raise AtifError("the trajectory has no step of the agent")
    output: list[Row] = []
    for step in trajectory.steps[first:]:
        output += _items(step, identity)
    totals = trajectory.final_metrics
    read, written = (totals.total_prompt_tokens, totals.total_completion_tokens) if totals else (None, None)
    usage = None
    if read is not None and written is not None:
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": (totals.total_cached_tokens if totals else None) or 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }
    return {
        "id": _id(identity, "response"),
        "created_at": _created_at(trajectory.steps),
        "model": trajectory.agent.model_name or "unknown",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
        "usage": usage,
    }


def _items(step: AtifStep, identity: str) -> list[Row]:
    """Return the items of a step: reasoning, message, calls, and their outputs."""
    where = f"step {step.step_id}"
    if step.is_copied_context:
        raise AtifError(f"{where} is copied from another context")
    if (step.llm_call_count or 0) > 1:
        raise AtifError(f"{where} stands for {step.llm_call_count} model calls")
    all_results = step.observation.results if step.observation else []
    results = {each.source_call_id: each for each in all_results}
    if len(results) != len(all_results) or not results.keys() <= {call.tool_call_id for call in step.tool_calls or ()}:
        raise AtifError(f"{where} has a result that belongs to no call, or two for one call")
    text = _text(step.message, where)
    if step.source != "agent":
        return [{"type": "message", "role": step.source, "content": text}]
    items: list[Row] = []
    if step.reasoning_content:
        summary = [{"type": "summary_text", "text": step.reasoning_content}]
        items.append({"type": "reasoning", "id": _id(identity, step.step_id, "reasoning"), "summary": summary})
    if text or not step.tool_calls:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
        items.append({**message, "id": _id(identity, step.step_id, "message")})
    outputs: list[Row] = []
    for call in step.tool_calls or ():
        if call.tool_call_id not in results:
            raise AtifError(f"{where}: the call {call.tool_call_id} has no result")
        result = results[call.tool_call_id]
        invalid = (call.extra or {}).get("invalid_arguments")
        arguments = (
            invalid
            if isinstance(invalid, str)
            else json.dumps(call.arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        )
        fields = {"name": call.function_name, "call_id": call.tool_call_id, "arguments": arguments}
        item_id = _id(identity, step.step_id, call.tool_call_id)
        items.append({"type": "function_call", "id": item_id, "status": "completed", **fields})
        structured = (result.extra or {}).get("tool_result")
        content_text = _text(result.content or "", where) if structured is None else json.dumps(structured)
        outputs.append({"type": "function_call_output", "call_id": call.tool_call_id, "output": content_text})
    return items + outputs


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if any(part.type != "text" for part in content):
        raise AtifError(f"{where} has an image")
    return "\n".join(part.text or "" for part in content)


def _created_at(steps: Sequence[AtifStep]) -> float:
    """Return the time of the last step of the agent; 0 without one that has a time zone."""
    times = [step.timestamp for step in steps if step.source == "agent" and step.timestamp]
    moment = datetime.fromisoformat(times[-1]) if times else None
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else 0.0


def _id(*parts: Any) -> str:
    return f"atif_{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]}"
