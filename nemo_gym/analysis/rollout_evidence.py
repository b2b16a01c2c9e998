"""What the stored record of one rollout proves: its trajectory, its turns and the model calls that belong to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from nemo_gym.capture.call_text import answer_of
from nemo_gym.capture.record import CapturedExchange, ModelCallRecord
from nemo_gym.keys import NG_TRAJECTORY_KEY
from nemo_gym.wire.observations import ModelCallRef, TrajectoryModelCall, TrajectoryRecord, TrajectoryTurn
from nemo_gym.wire.stored_rollout import Row

_INCOMPLETE_CAPTURES = frozenset({"capture_incomplete", "model_call_capture_incomplete"})
_UNREADABLE_CAPTURES = frozenset({"model_call_invalid", "capture_torn_line", "capture_parse_error"})
_FAILED_STATUSES = frozenset({"failed", "error", "cancelled"})


class MissingEvidenceError(Exception):
    """A check cannot be made, because the record lacks what it needs; the text is the name of the gap."""


@dataclass
class RolloutEvidence:
    """One row of a results file that is a JSON object."""

    row: Row

    @cached_property
    def trajectory(self) -> TrajectoryRecord:
        """Return the trajectory.

        Raises:
            MissingEvidenceError: the row has none.
            ValidationError: it is invalid.
        """
        stored = self.row.get(NG_TRAJECTORY_KEY)
        if stored is None:
            raise MissingEvidenceError("trajectory_unavailable")
        return TrajectoryRecord.model_validate(stored)

    def trajectory_problem(self) -> str | None:
        """Return what is invalid in the trajectory; None if it is valid or missing."""
        try:
            _ = self.trajectory
        except MissingEvidenceError:
            return None
        except ValidationError as error:
            first = error.errors()[0]
            return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return None

    @cached_property
    def gap_codes(self) -> frozenset[str]:
        return frozenset(gap.code for gap in self.trajectory.gaps)

    def turns(self) -> list[TrajectoryTurn]:
        """Return the turns; an agent may report that it had none."""
        if "turns_unavailable" in self.gap_codes:
            raise MissingEvidenceError("turns_unavailable")
        return self.trajectory.turns

    def calls(self) -> list[TrajectoryModelCall]:
        """Return all captured calls, if all are captured."""
        if self.gap_codes & _INCOMPLETE_CAPTURES:
            raise MissingEvidenceError("model_call_capture_incomplete")
        if self.gap_codes & _UNREADABLE_CAPTURES:
            raise MissingEvidenceError("model_call_records_unreadable")
        if not self.trajectory.model_calls:
            raise MissingEvidenceError("model_calls_unavailable")
        return self.trajectory.model_calls

    def owned_calls(self) -> list[TrajectoryModelCall]:
        """Return the calls to which an invocation or a turn refers; without any reference, all of them."""
        ids = {reference.model_call_id for _, reference in self.references()}
        return [call for call in self.calls() if not ids or call.model_call_id in ids]

    def calls_of_turns(self) -> list[TrajectoryModelCall]:
        """Return the calls to which turns refer."""
        references = [reference for turn in self.turns() for reference in turn.model_calls]
        by_id = {call.model_call_id: call for call in self.calls()}
        if not references or any(reference.model_call_id not in by_id for reference in references):
            raise MissingEvidenceError("turn_model_call_scope_incomplete")
        return [by_id[name] for name in dict.fromkeys(str(reference.model_call_id) for reference in references)]

    def references(self) -> Iterator[tuple[str, ModelCallRef]]:
        """Yield each reference to a model call, with the place where it stands."""
        for invocation in self.trajectory.invocations:
            yield from ((f"invocation {invocation.invocation_id}", reference) for reference in invocation.model_calls)
        for turn in self.trajectory.turns:
            yield from ((f"turn {turn.turn_no}", reference) for reference in turn.model_calls)

    def usage(self) -> tuple[int, int]:
        """Return the input and output tokens that the response reports."""
        response = self.row.get("response")
        usage = response.get("usage") if isinstance(response, Mapping) else None
        reported = usage if isinstance(usage, Mapping) else {}
        counts = [count for name in ("input_tokens", "output_tokens") if isinstance(count := reported.get(name), int)]
        if len(counts) < 2:
            raise MissingEvidenceError("usage_unavailable")
        return counts[0], counts[1]

    @cached_property
    def _calls_by_id(self) -> dict[str, TrajectoryModelCall]:
        return {call.model_call_id: call for call in self.trajectory.model_calls}

    def turn_has_tool_call(self, turn: TrajectoryTurn) -> bool:
        """Return True if the model called a tool in this turn; a tool call of an unbound turn may be of any turn."""
        if not turn.model_calls:
            return any(call.invocation_id == turn.invocation_id for call in self.trajectory.tool_calls)
        calls = [self._calls_by_id.get(reference.model_call_id or "") for reference in turn.model_calls]
        if None in calls:
            raise MissingEvidenceError("turn_model_call_scope_incomplete")
        return any(tool_calls_of(call) for call in calls if call is not None)


def tool_calls_of(call: TrajectoryModelCall) -> list[Any]:
    """Return the tool calls in the answer of a model call, also of tools that the endpoint runs (`web_search_call`)."""
    output = call.response.get("output") if isinstance(call.response, Mapping) else None
    items = [item for item in output if isinstance(item, Mapping)] if isinstance(output, list) else []
    hosted = [item for item in items if item.get("type") != "function_call" and str(item.get("type")).endswith("_call")]
    return [*ModelCallRecord.of(_exchange(call), 0).tool_calls, *hosted]


def text_of_answer(call: TrajectoryModelCall) -> str | None:
    """Return the text in the answer of a model call, without reasoning."""
    return answer_of(_exchange(call))


def failure_of(call: TrajectoryModelCall) -> str | None:
    """Return why a model call failed; None if it succeeded."""
    metadata = call.response_metadata
    if metadata is None:
        return None
    if metadata.status_code is not None and metadata.status_code >= 400:
        return f"status {metadata.status_code}"
    if metadata.error_category is not None:
        return str(metadata.error_category)
    return metadata.response_status if metadata.response_status in _FAILED_STATUSES else None


def model_of(call: TrajectoryModelCall) -> str:
    """Return the model server of a call, or the name of its model."""
    metadata = call.response_metadata
    if metadata is None:
        return ""
    return metadata.model_ref.name if metadata.model_ref is not None else metadata.model or ""


def _exchange(call: TrajectoryModelCall) -> CapturedExchange:
    dialect = None if call.response_metadata is None else call.response_metadata.dialect
    return CapturedExchange.model_construct(
        model_call_id=call.model_call_id, dialect=dialect, request=call.request, response=call.response
    )
