"""Terminal attribution: the model call whose answer ended the rollout.

All witnesses must name one call, or calls with the same tokens. Without a unique call the rollout is not attributed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nemo_gym.token_id_capture.fingerprint import assistant_fingerprint, is_model_authored

TERMINAL_CALL_KEY = "_ng_terminal_model_call_id"
TERMINAL_RESPONSE_KEY = "terminal_response_id"

Method = Literal["", "explicit", "declared", "response_id", "content_cumulative", "content_output", "content"]


@dataclass(frozen=True)
class TerminalAttribution:
    """The call that ended a rollout, and how it was found; `reason` says why there is no call."""

    model_call_id: str | None = None
    method: Method = ""
    reason: str = ""


def resolve_terminal(result: Mapping[str, Any], entries: Sequence[Any]) -> TerminalAttribution:
    """Find the call that ended a rollout from its result and its calls: `TokenEntry` objects or rows of a ledger."""
    witnesses: list[tuple[Method, list[Any]]] = []
    explicit = result.get(TERMINAL_CALL_KEY)
    if explicit:
        witnesses.append(("explicit", [entry for entry in entries if entry.model_call_id == explicit]))
    declared = result.get(TERMINAL_RESPONSE_KEY)
    if declared:
        matches = [entry for entry in entries if entry.response_id and entry.response_id == declared]
        if not _is_one_sequence(matches):
            return TerminalAttribution(
                reason="declared_response_id_not_unique" if matches else "declared_response_id_unknown"
            )
        witnesses.append(("declared", matches))
    response = result.get("response")
    if isinstance(response, Mapping):
        matches = [entry for entry in entries if entry.response_id and entry.response_id == response.get("id")]
        if matches:
            witnesses.append(("response_id", matches))
        witnesses += _content_witnesses(response.get("output"), entries)
    return _agreement(witnesses)


def _agreement(witnesses: list[tuple[Method, list[Any]]]) -> TerminalAttribution:
    """Return the call that all witnesses name; calls with the same tokens count as one."""
    if not witnesses:
        return TerminalAttribution(reason="no_witness")
    for method, matches in witnesses:
        if not matches:
            return TerminalAttribution(reason=f"{method}_call_not_captured")
    first_method, candidates = witnesses[0]
    for _, matches in witnesses[1:]:
        sequences = {_sequence(entry) for entry in matches}
        candidates = [entry for entry in candidates if _sequence(entry) in sequences]
    if not candidates:
        names = ",".join(f"{method}={min(entry.model_call_id for entry in matches)}" for method, matches in witnesses)
        return TerminalAttribution(reason=f"witness_disagreement[{names}]")
    if not _is_one_sequence(candidates):
        return TerminalAttribution(reason=f"{first_method}_ambiguous")
    return TerminalAttribution(min(entry.model_call_id for entry in candidates), first_method)


def _content_witnesses(output: Any, entries: Sequence[Any]) -> list[tuple[Method, list[Any]]]:
    """Return the calls whose text is the scored output; the most specific comparison that matches counts."""
    if not isinstance(output, list):
        return []
    try:
        scored = assistant_fingerprint(output)
        trailing = assistant_fingerprint(_trailing_block(output))
    except ValueError:
        return []
    if not scored:
        return []
    outputs = {id(entry): _output_fingerprint(entry) for entry in entries}
    comparisons: tuple[tuple[Method, list[Any]], ...] = (
        ("content_cumulative", [entry for entry in entries if entry.continuation_fingerprint == scored]),
        ("content_output", [entry for entry in entries if outputs[id(entry)] == scored]),
        ("content", [entry for entry in entries if outputs[id(entry)] == trailing]),
    )
    return next(([(method, matches)] for method, matches in comparisons if matches), [])


def _output_fingerprint(entry: Any) -> str:
    """Return the fingerprint of a call's own output; a ledger row has it stored."""
    stored = getattr(entry, "output_fingerprint", None)
    return stored if isinstance(stored, str) else assistant_fingerprint(getattr(entry, "output_items", ()))


def _trailing_block(output: list[Any]) -> list[Any]:
    """Return the model's items after the last item of another author."""
    block: list[Any] = []
    for item in reversed(output):
        if isinstance(item, Mapping) and item.get("type") == "reasoning":
            continue
        if not is_model_authored(item):
            break
        block.append(item)
    return block[::-1]


def _sequence(entry: Any) -> tuple[Any, ...]:
    """Return what identifies the tokens of a call."""
    custody = getattr(entry, "cumulative_hash", None)
    return (custody, entry.cum_len) if custody else (getattr(entry, "digest", ""), entry.cum_len)


def _is_one_sequence(entries: Sequence[Any]) -> bool:
    return len({_sequence(entry) for entry in entries}) == 1
