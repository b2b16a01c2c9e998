"""Select the last call of a rollout from its ledger rows, if no witness names it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_gym.token_id_capture.staging.records import CallRecord

SELECTED = "selected"


@dataclass(frozen=True)
class TerminalChoice:
    """The selected call; `reason` is `selected`, or why no call is selected."""

    model_call_id: str | None
    reason: str


def select_terminal_call(records: Sequence[CallRecord]) -> TerminalChoice:
    """Follow the conversation from its root: at each level the call that has continuations, or the only one."""
    if not records:
        return TerminalChoice(None, "no_records")
    by_id = {record.model_call_id: record for record in records}
    if len(by_id) != len(records):
        return TerminalChoice(None, "duplicate_call_id")
    children: defaultdict[str, list[CallRecord]] = defaultdict(list)
    for record in records:
        if record.parent_call_id is not None:
            if record.parent_call_id not in by_id:
                return TerminalChoice(None, "orphaned_row")
            children[record.parent_call_id].append(record)
    roots = [record for record in records if record.parent_call_id is None]
    if not roots:
        return TerminalChoice(None, "no_root")
    extended = [root for root in roots if children[root.model_call_id]]
    call = min(extended or roots, key=lambda root: (root.admitted_at or 0.0, root.model_call_id))
    for _ in records:
        successors = children[call.model_call_id]
        if not successors:
            return TerminalChoice(call.model_call_id, SELECTED)
        continued = [record for record in successors if children[record.model_call_id]]
        candidates = continued or successors
        if len(candidates) > 1:
            return TerminalChoice(None, "ambiguous_terminal")
        call = candidates[0]
    return TerminalChoice(None, "ambiguous_terminal")
