"""Chains of captured calls: which call continues which, proven by the tokens.

The main chain ends with the call that ended the rollout. The other calls form further traces: sub-agents, contexts
before a compaction, branches. Every generated token is in one chain or is counted with the reason why it is in none.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from nemo_gym.token_id_capture.records import TokenEntry, token_digest

MAIN_TRACE = "main"


@dataclass
class Chain:
    """Calls of which each continues the one before; the prompt of each record is complete."""

    name: str
    calls: list[TokenEntry]

    @property
    def generated_tokens(self) -> int:
        return sum(len(call.generation_token_ids) for call in self.calls)


@dataclass
class BuildNotes:
    """Counts of one build."""

    roots: int = 0
    """Calls that continue no other call."""
    chains: int = 0
    """Ways from a root to a call without continuation."""
    generated_tokens_captured: int = 0
    generated_tokens_delivered: int = 0
    unresolved_retries: int = 0
    """Calls with the same prompt; it is unknown which of them the agent used."""
    terminal_call_id: str | None = None
    terminal_chain: str = ""
    """`delivered`, `broken` or `not_captured`; empty if the call that ended the rollout is unknown."""
    empty_generation_calls: int = 0
    parent_link_failures: dict[str, int] = field(default_factory=dict)
    unresolved_parent_calls: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Generated tokens that are in no chain, by reason."""

    @property
    def delivered_fraction(self) -> float:
        captured = self.generated_tokens_captured
        return self.generated_tokens_delivered / captured if captured else 0.0


class BuiltChains(NamedTuple):
    """The chains of a rollout, the main chain first, and the notes of the build."""

    chains: list[Chain]
    notes: BuildNotes


@dataclass(eq=False)
class _LinkedCall:
    """A call during the build, with its complete prompt."""

    entry: TokenEntry
    parent: "_LinkedCall | None" = None
    children: list["_LinkedCall"] = field(default_factory=list)
    is_boundary: bool = False
    """The call continues an unknown call, so the beginning of its chain is not proven."""

    @property
    def id(self) -> str:
        return self.entry.model_call_id

    @property
    def tokens(self) -> list[int]:
        return [*self.entry.prompt_token_ids, *self.entry.generation_token_ids]

    def path(self) -> list["_LinkedCall"]:
        """Return the calls from the root to this one."""
        path: list[_LinkedCall] = []
        call: _LinkedCall | None = self
        while call is not None:
            path.append(call)
            call = call.parent
        return path[::-1]

    def link(self, parent: "_LinkedCall") -> None:
        self.parent = parent
        parent.children.append(self)


def prefix_merging(entries: Iterable[TokenEntry], terminal_call_id: str | None = None) -> BuiltChains:
    """Build the chains of a rollout; `terminal_call_id` is the call that ended it, if it is known."""
    notes = BuildNotes(terminal_call_id=terminal_call_id)
    failures: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    records = _distinct_entries(entries, failures)
    notes.generated_tokens_captured = sum(len(entry.generation_token_ids) for entry in records.values())
    calls = _calls_with_prompts(records, notes, failures, left_out)
    _link_parents(calls, notes, failures)
    terminal = next((call for call in calls if call.id == terminal_call_id), None)
    calls = _without_retries(calls, terminal, notes, left_out)
    leaves = [call for call in calls if not call.children]
    notes.roots = sum(call.parent is None for call in calls)
    notes.chains = len(leaves)
    main = _main_path(leaves, terminal, notes)
    chains = [Chain(MAIN_TRACE, [call.entry for call in main])] if main else []
    chains += _further_traces(calls, main)
    notes.generated_tokens_delivered = sum(chain.generated_tokens for chain in chains)
    notes.parent_link_failures = dict(failures)
    notes.left_out = {reason: count for reason, count in left_out.items() if count}
    return BuiltChains(chains, notes)


def _distinct_entries(entries: Iterable[TokenEntry], failures: Counter[str]) -> dict[str, TokenEntry]:
    """Return the records by call id; of two different records with one id the first one counts."""
    records: dict[str, TokenEntry] = {}
    for entry in entries:
        earlier = records.setdefault(entry.model_call_id, entry)
        if earlier is not entry and earlier != entry:
            failures["conflicting_call_id"] += 1
    return records


def _calls_with_prompts(
    records: dict[str, TokenEntry], notes: BuildNotes, failures: Counter[str], left_out: Counter[str]
) -> list[_LinkedCall]:
    """Return the calls with complete prompts and a generation, shortest prompt first."""
    complete: dict[str, TokenEntry | None] = {}
    for call_id in records:
        _complete_prompts(call_id, records, complete)
    calls: list[_LinkedCall] = []
    for call_id, entry in records.items():
        whole = complete[call_id]
        if whole is None:
            failures["broken_delta" if entry.prompt_is_delta else "corrupt_digest"] += 1
            left_out["broken_record"] += len(entry.generation_token_ids)
        elif not whole.generation_token_ids:
            notes.empty_generation_calls += 1
        else:
            calls.append(_LinkedCall(whole))
    return sorted(calls, key=lambda call: (len(call.entry.prompt_token_ids), call.entry.created_at, call.id))


def _complete_prompts(call_id: str, records: dict[str, TokenEntry], complete: dict[str, TokenEntry | None]) -> None:
    """Set the complete record of a call and of the parents it needs; None if it cannot be restored or is corrupt."""
    pending: list[str] = []
    current: str | None = call_id
    while current is not None and current in records and current not in complete and current not in pending:
        pending.append(current)
        current = records[current].parent_call_id if records[current].prompt_is_delta else None
    for each in reversed(pending):
        entry = records[each]
        if entry.prompt_is_delta:
            parent = complete.get(entry.parent_call_id or "")
            if parent is None:
                complete[each] = None
                continue
            prompt = [*parent.prompt_token_ids, *parent.generation_token_ids, *entry.prompt_token_ids]
            entry = entry.model_copy(update={"prompt_token_ids": prompt, "prompt_is_delta": False})
        is_corrupt = entry.digest and entry.digest != token_digest(
            [*entry.prompt_token_ids, *entry.generation_token_ids]
        )
        complete[each] = None if is_corrupt else entry


def _link_parents(calls: list[_LinkedCall], notes: BuildNotes, failures: Counter[str]) -> None:
    """Link every call to the one that it continues, if its prompt begins with that call's tokens."""
    by_id = {call.id: call for call in calls}
    for call in calls:
        entry = call.entry
        if entry.parent_resolution == "root" or entry.opens_context:
            continue
        if entry.parent_resolution == "resolved" and entry.parent_call_id in by_id:
            parent = by_id[entry.parent_call_id]
            if parent is not call and _continues(call, parent):
                call.link(parent)
            else:
                failures["prefix_mismatch"] += 1
                call.is_boundary = True
        elif entry.parent_resolution == "resolved":
            recovered = _longest_prefix(call, calls)
            if recovered is None:
                failures["missing_parent"] += 1
                call.is_boundary = True
            else:
                call.link(recovered)
        else:
            notes.unresolved_parent_calls += 1
            if entry.parent_resolution is None:
                failures["missing_decision"] += 1
            call.is_boundary = True


def _continues(call: _LinkedCall, parent: _LinkedCall) -> bool:
    prompt, length = call.entry.prompt_token_ids, len(parent.tokens)
    return len(prompt) >= length and prompt[:length] == parent.tokens


def _longest_prefix(call: _LinkedCall, calls: list[_LinkedCall]) -> _LinkedCall | None:
    """Return the call with the longest tokens that the prompt begins with; None if there is no single one."""
    candidates = [other for other in calls if other is not call and _continues(call, other)]
    if not candidates:
        return None
    longest = max(len(other.tokens) for other in candidates)
    best = [other for other in candidates if len(other.tokens) == longest]
    return best[0] if len(best) == 1 else None


def _without_retries(
    calls: list[_LinkedCall], terminal: _LinkedCall | None, notes: BuildNotes, left_out: Counter[str]
) -> list[_LinkedCall]:
    """Leave out calls that were repeated with the same prompt and not used."""
    siblings: defaultdict[tuple[str, tuple[int, ...]], list[_LinkedCall]] = defaultdict(list)
    for call in calls:
        siblings[call.parent.id if call.parent else "", tuple(call.entry.prompt_token_ids)].append(call)
    on_path = {call.id for call in terminal.path()} if terminal is not None else set()
    dropped: set[str] = set()
    for group in siblings.values():
        if len(group) == 1:
            continue
        used = [call for call in group if call.id in on_path or call.children]
        if not used:
            used = [min(group, key=lambda call: call.id)]
            notes.unresolved_retries += terminal is None
        for call in group:
            if call not in used:
                dropped.add(call.id)
                left_out["retry"] += len(call.entry.generation_token_ids)
                if call.parent is not None:
                    call.parent.children.remove(call)
    return [call for call in calls if call.id not in dropped]


def _main_path(leaves: list[_LinkedCall], terminal: _LinkedCall | None, notes: BuildNotes) -> list[_LinkedCall]:
    """Return the calls of the main chain: those up to the terminal call, else the chain that began first."""
    if notes.terminal_call_id is not None:
        notes.terminal_chain = "not_captured"
    if terminal is not None:
        path = terminal.path()
        notes.terminal_chain = "broken" if path[0].is_boundary else "delivered"
        if not path[0].is_boundary:
            return path
    paths = [leaf.path() for leaf in leaves]
    return min(paths, key=lambda path: (path[0].entry.created_at, -len(path), path[-1].id), default=[])


def _further_traces(calls: list[_LinkedCall], main: list[_LinkedCall]) -> list[Chain]:
    """Divide the calls outside the main chain into traces, longest way first; every call is in one of them."""
    assigned = {call.id for call in main}
    traces: list[Chain] = []
    numbers: Counter[str] = Counter()
    for leaf in sorted(calls, key=lambda call: (-len(call.path()), call.entry.created_at, call.id)):
        path = [call for call in leaf.path() if call.id not in assigned]
        if not path or path[-1] is not leaf:
            continue
        assigned.update(call.id for call in path)
        first = path[0]
        kind = (
            "branch" if first.parent is not None else "context" if first.entry.parent_resolution != "root" else "root"
        )
        numbers[kind] += 1
        traces.append(Chain(f"{kind}-{numbers[kind]}", [call.entry for call in path]))
    return traces
