"""From the snapshot of a rollout to the tokens it delivers: chains, the reason for a mask, and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_gym.token_id_capture.builder import MAIN_TRACE, BuildNotes, BuiltChains, Chain, prefix_merging
from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot, TokenSource
from nemo_gym.token_id_capture.records import TokenEntry, is_too_long
from nemo_gym.token_id_capture.terminal import TERMINAL_RESPONSE_KEY, TerminalAttribution, resolve_terminal
from nemo_gym.wire.base import GENERATION_FIELDS, REQUIRED_TOKEN_FIELDS


@dataclass
class Delivery:
    """The tokens of a rollout, or the reason why they are not proven."""

    chains: list[Chain] = field(default_factory=list)
    mask_reason: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> Chain | None:
        return next((chain for chain in self.chains if chain.name == MAIN_TRACE), None)

    @property
    def traces(self) -> list[dict[str, Any]]:
        """The chains besides the main one, as results carry them."""
        others = [chain for chain in self.chains if chain.name != MAIN_TRACE]
        return [{"trace": chain.name, "calls": [call_fields(call) for call in chain.calls]} for chain in others]


def call_fields(call: TokenEntry) -> dict[str, Any]:
    """Return the token fields of a call and what the engine reported about its generation."""
    fields = token_fields(call)
    item = call.output_items[call.token_item_index] if call.output_items else {}
    return fields | {name: item[name] for name in GENERATION_FIELDS if item.get(name) is not None}


def token_fields(call: TokenEntry) -> dict[str, Any]:
    """Return the token arrays of a call, as an output item carries them."""
    fields: dict[str, Any] = {name: getattr(call, name) for name in REQUIRED_TOKEN_FIELDS}
    if call.routed_experts is not None:
        fields["routed_experts"] = call.routed_experts
    return fields


def build_delivery(snapshot: TokenCaptureSnapshot, result: Mapping[str, Any]) -> Delivery:
    """Build the chains of a snapshot and decide whether the result may be trained on."""
    attribution = resolve_terminal(result, snapshot.entries)
    built = prefix_merging(snapshot.entries, attribution.model_call_id)
    response = result.get("response")
    reason = mask_reason(snapshot, attribution, built.notes, is_declared=bool(result.get(TERMINAL_RESPONSE_KEY)))
    if not snapshot.incomplete and not snapshot.entries and isinstance(response, Mapping) and is_too_long(response):
        reason = None  # nothing was generated, so nothing is missing
    metrics = capture_metrics(snapshot, attribution, built)
    if reason is not None:
        metrics["mask_reason"] = reason
    return Delivery(built.chains, reason, metrics)


def mask_reason(
    snapshot: TokenCaptureSnapshot, attribution: TerminalAttribution, notes: BuildNotes, *, is_declared: bool = False
) -> str | None:
    """Return why the tokens of a rollout are not proven; None if they are."""
    if snapshot.incomplete:
        return "capture_incomplete: " + ("; ".join(snapshot.reasons[:3]) or "a call is missing")
    if not snapshot.entries:
        return "no_records: no model call of the rollout was captured"
    if not notes.generated_tokens_delivered:
        return "empty_delivery: no call generated a token that could be delivered"
    if notes.terminal_chain == "delivered":
        return None
    if attribution.model_call_id is not None:
        failures = ", ".join(f"{name} {count}" for name, count in notes.parent_link_failures.items())
        detail = f"; {failures}" if failures else ""
        return f"terminal_{notes.terminal_chain}: the chain of the last call is not proven{detail}"
    if is_declared:
        return f"terminal_not_attributed: {attribution.reason}"
    if notes.roots == notes.chains == 1 and not notes.unresolved_parent_calls and not notes.unresolved_retries:
        return None
    return (
        f"terminal_not_attributed: {attribution.reason}; {notes.roots} roots, {notes.chains} chains, "
        f"{notes.unresolved_parent_calls} unresolved calls, {notes.unresolved_retries} unresolved retries"
    )


def capture_metrics(
    snapshot: TokenCaptureSnapshot, attribution: TerminalAttribution, built: BuiltChains
) -> dict[str, Any]:
    """Return the counts that a result carries under `_ng_token_capture`."""
    notes = built.notes
    n_calls = len({entry.model_call_id for entry in snapshot.entries})
    delivered_calls = sum(len(chain.calls) for chain in built.chains)
    metrics: dict[str, Any] = {
        "n_calls": n_calls,
        "terminal_attribution": {
            "method": attribution.method,
            "call_id": attribution.model_call_id,
            "reason": attribution.reason,
            "chain": notes.terminal_chain,
        },
        "chains": notes.chains,
        "roots": notes.roots,
        "quarantined_calls": n_calls - delivered_calls,
        "quarantined_fraction": (n_calls - delivered_calls) / n_calls if n_calls else 0.0,
        "delivered_fraction": notes.delivered_fraction,
        "generated_tokens_captured": notes.generated_tokens_captured,
        "generated_tokens_delivered": notes.generated_tokens_delivered,
        "parent_link_failures": notes.parent_link_failures,
        "unresolved_parent_calls": notes.unresolved_parent_calls,
        "unresolved_retries": notes.unresolved_retries,
        "empty_generation_calls": notes.empty_generation_calls,
    }
    if notes.left_out:
        metrics["left_out"] = notes.left_out
    if snapshot.incomplete:
        metrics["capture_incomplete"] = True
    return metrics


async def trajectories_from_source(
    source: TokenSource, rollout_id: str, terminal_call_id: str | None = None
) -> BuiltChains:
    """Freeze a rollout and return its chains, for frameworks that read the records themselves."""
    snapshot = await source.freeze(rollout_id)
    return prefix_merging(snapshot.entries, terminal_call_id)
