"""Chains, terminal attribution and masks, over any shape of rollout."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.token_id_capture.builder import prefix_merging
from nemo_gym.token_id_capture.consumer import build_delivery
from nemo_gym.token_id_capture.fingerprint import assistant_fingerprint
from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot
from nemo_gym.token_id_capture.records import TokenEntry, token_digest
from nemo_gym.token_id_capture.terminal import resolve_terminal

Json = dict[str, Any]


def call(
    number: int,
    prompt: list[int],
    generation: list[int],
    parent: TokenEntry | None = None,
    *,
    text: str | None = None,
    **fields: Any,
) -> TokenEntry:
    tokens = [*prompt, *generation]
    item = {"role": "assistant", "content": text or f"text {number}"}
    values: Json = {
        "rollout_id": "r",
        "model_call_id": f"c{number:03}",
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": [-0.5] * len(generation),
        "output_items": [item],
        "created_at": float(number),
        "response_id": f"resp{number}",
        "parent_call_id": parent.model_call_id if parent else None,
        "parent_resolution": "resolved" if parent else "root",
        "cum_len": len(tokens),
        "digest": token_digest(tokens),
        "continuation_fingerprint": assistant_fingerprint([item]),
        **fields,
    }
    return TokenEntry.model_validate(values)


def tokens_of(entry: TokenEntry) -> list[int]:
    return [*entry.prompt_token_ids, *entry.generation_token_ids]


def as_delta(entry: TokenEntry, parent: TokenEntry) -> TokenEntry:
    suffix = entry.prompt_token_ids[len(tokens_of(parent)) :]
    return entry.model_copy(update={"prompt_token_ids": suffix, "prompt_is_delta": True})


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[TokenEntry], str | None]:
    """Any forest of calls with retries, delta records, boundaries and lies about parents."""
    whole: list[TokenEntry] = []
    stored: list[TokenEntry] = []
    small = st.lists(st.integers(0, 3), min_size=1, max_size=3)
    for number in range(draw(st.integers(1, 8))):
        kind = draw(
            st.sampled_from(["root", "child", "child", "child", "retry", "unresolved", "lie", "empty", "delta"])
        )
        parent = draw(st.sampled_from(whole)) if whole and kind != "root" else None
        generation = [] if kind == "empty" else draw(small)
        if kind == "retry" and parent is not None:
            fields = {"parent_call_id": parent.parent_call_id, "parent_resolution": parent.parent_resolution}
            entry = call(number, parent.prompt_token_ids, generation, **fields)
        elif kind == "unresolved":
            entry = call(number, draw(small), generation, parent_resolution="unresolved")
        elif kind == "lie" and parent is not None:
            entry = call(number, draw(small), generation, parent)
        else:
            prompt = [*(tokens_of(parent) if parent else []), *draw(small)]
            entry = call(number, prompt, generation, parent)
        whole.append(entry)
        stored.append(as_delta(entry, parent) if kind == "delta" and parent is not None else entry)
    terminal = draw(st.none() | st.sampled_from([entry.model_call_id for entry in whole]))
    return draw(st.permutations(stored)), terminal


@given(rollouts())
def test_every_generated_token_is_delivered_once_or_counted(rollout: tuple[list[TokenEntry], str | None]) -> None:
    """This is the law of the capture: no token is lost, none is trained on twice, none is made up."""
    entries, terminal = rollout
    chains, notes = prefix_merging(entries, terminal)

    calls = [entry for chain in chains for entry in chain.calls]
    assert len({entry.model_call_id for entry in calls}) == len(calls)
    captured = sum(len(entry.generation_token_ids) for entry in entries)
    delivered = sum(len(entry.generation_token_ids) for entry in calls)
    assert notes.generated_tokens_captured == captured
    assert notes.generated_tokens_delivered == delivered
    assert captured == delivered + sum(notes.left_out.values())
    originals = {entry.model_call_id: entry for entry in entries}
    for entry in calls:
        assert entry.generation_token_ids == originals[entry.model_call_id].generation_token_ids
        assert entry.digest == token_digest(tokens_of(entry))


@given(rollouts())
def test_the_calls_of_a_chain_continue_each_other(rollout: tuple[list[TokenEntry], str | None]) -> None:
    """A chain is one sequence of tokens: every prompt begins with all tokens before it."""
    chains, notes = prefix_merging(*rollout)
    for chain in chains:
        for earlier, later in zip(chain.calls, chain.calls[1:], strict=False):
            assert later.prompt_token_ids[: earlier.cum_len] == tokens_of(earlier)
    if notes.terminal_chain == "delivered":
        assert chains[0].calls[-1].model_call_id == rollout[1]


@given(rollouts())
def test_the_order_of_records_does_not_matter(rollout: tuple[list[TokenEntry], str | None]) -> None:
    """Workers write concurrently."""
    entries, terminal = rollout
    first, second = (
        prefix_merging(entries, terminal),
        prefix_merging(sorted(entries, key=lambda e: e.model_call_id), terminal),
    )
    assert first == second


def test_a_record_twice_is_one_call_and_a_conflict_is_noted() -> None:
    """Stores may deliver at least once."""
    first = call(0, [1], [2])
    assert prefix_merging([first, first], "c000").notes.chains == 1
    notes = prefix_merging([first, call(0, [1], [3])], "c000").notes
    assert notes.parent_link_failures == {"conflicting_call_id": 1}


def test_a_missing_parent_is_found_by_the_longest_prefix() -> None:
    """A record with another id but the same tokens proves the same history."""
    first = call(0, [1], [2])
    second = call(1, [1, 2, 3], [4], parent_call_id="gone", parent_resolution="resolved")
    chains, notes = prefix_merging([first, second], "c001")
    assert [entry.model_call_id for entry in chains[0].calls] == ["c000", "c001"]
    assert notes.terminal_chain == "delivered"

    twin = call(2, [1], [2])
    notes = prefix_merging([first, twin, second], "c001").notes
    assert notes.terminal_chain == "broken"
    assert notes.parent_link_failures == {"missing_parent": 1}


def test_a_broken_delta_is_left_out_and_counted() -> None:
    """Without its parent a delta record has no prompt."""
    first = call(0, [1], [2])
    second = as_delta(call(1, [1, 2, 3], [4, 5], first), first)
    chains, notes = prefix_merging([second], None)
    assert chains == []
    assert notes.left_out == {"broken_record": 2}
    corrupt = first.model_copy(update={"prompt_token_ids": [9]})
    assert prefix_merging([corrupt], None).notes.parent_link_failures == {"corrupt_digest": 1}


def snapshot(*entries: TokenEntry, **fields: Any) -> TokenCaptureSnapshot:
    return TokenCaptureSnapshot(rollout_id="r", entries=list(entries), **fields)


def result(response_id: str = "", *texts: str, **fields: Any) -> Json:
    output = [{"type": "message", "role": "assistant", "content": text} for text in texts]
    return {"response": {"id": response_id, "output": output}, **fields}


FIRST = call(0, [1], [2])
SECOND = call(1, [1, 2, 3], [4], FIRST)
OTHER = call(2, [7], [8])


@pytest.mark.parametrize(
    ("row", "entries", "method", "call_id"),
    [
        (result("resp1"), [FIRST, SECOND], "response_id", "c001"),
        (result("x", "text 1"), [FIRST, SECOND], "content_cumulative", "c001"),
        (result("x", terminal_response_id="resp0"), [FIRST, SECOND], "declared", "c000"),
        (result("x", _ng_terminal_model_call_id="c001"), [FIRST, SECOND], "explicit", "c001"),
        (result("resp1", _ng_terminal_model_call_id="c001"), [FIRST, SECOND], "explicit", "c001"),
        (result("x", "elsewhere", "text 1"), [FIRST, SECOND], "", None),
    ],
)
def test_witnesses_name_the_call_that_ended_the_rollout(
    row: Json, entries: list[TokenEntry], method: str, call_id: str | None
) -> None:
    """The reward belongs to the chain that ends there."""
    attribution = resolve_terminal(row, entries)
    assert (attribution.method, attribution.model_call_id) == (method, call_id)


def test_the_trailing_block_is_a_witness() -> None:
    """An agent may return the whole conversation with earlier turns of the task."""
    row = result("x", "from the task")
    row["response"]["output"] += [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "text 1"}]
    attribution = resolve_terminal(row, [FIRST, SECOND])
    assert (attribution.method, attribution.model_call_id) == ("content", "c001")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (result("resp0", "text 1"), "witness_disagreement[response_id=c000,content_cumulative=c001]"),
        (result("x", terminal_response_id="unknown"), "declared_response_id_unknown"),
        (result("x", _ng_terminal_model_call_id="unknown"), "explicit_call_not_captured"),
        (result("x"), "no_witness"),
    ],
)
def test_doubtful_witnesses_attribute_nothing(row: Json, reason: str) -> None:
    """A wrong attribution would train the wrong tokens with the reward."""
    attribution = resolve_terminal(row, [FIRST, SECOND])
    assert (attribution.model_call_id, attribution.reason) == (None, reason)


@pytest.mark.parametrize(
    ("captured", "row", "reason"),
    [
        (snapshot(FIRST, SECOND), result("resp1"), None),
        (snapshot(FIRST, SECOND, OTHER), result("resp1"), None),
        (snapshot(FIRST, SECOND), result("x"), None),
        (snapshot(FIRST, SECOND, OTHER), result("x"), "terminal_not_attributed"),
        (snapshot(FIRST), result("x", terminal_response_id="y"), "terminal_not_attributed"),
        (snapshot(FIRST, call(3, [9], [9], parent_resolution="unresolved")), result("resp3"), "terminal_broken"),
        (snapshot(call(4, [9], [9], parent_resolution="unresolved")), result("x"), "terminal_not_attributed"),
        (snapshot(FIRST, call(5, [1], [2, 2])), result("x"), "terminal_not_attributed"),
        (snapshot(FIRST, incomplete=True), result("resp0"), "capture_incomplete"),
        (snapshot(call(6, [1], [])), result("resp6"), "empty_delivery"),
        (snapshot(), result("resp0"), "no_records"),
    ],
)
def test_a_rollout_is_masked_unless_its_tokens_are_proven(
    captured: TokenCaptureSnapshot, row: Json, reason: str | None
) -> None:
    """The rules of the contract, one case each."""
    delivery = build_delivery(captured, row)
    if reason is None:
        assert delivery.mask_reason is None
    else:
        assert str(delivery.mask_reason).startswith(reason)
        assert delivery.metrics["mask_reason"] == delivery.mask_reason
    assert delivery.metrics["n_calls"] == len(captured.entries)
