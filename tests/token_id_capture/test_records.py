"""Records, digests, fingerprints, lineage and the stores."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from nemo_gym.token_id_capture.conformance import ConformanceError, run_conformance
from nemo_gym.token_id_capture.fingerprint import (
    RequestItems,
    assistant_fingerprint,
    conversation_digest,
    request_items,
)
from nemo_gym.token_id_capture.lineage import (
    CachedCall,
    InMemoryLineageStore,
    LineageEntry,
    RolloutLineage,
    capture_health_snapshot,
)
from nemo_gym.token_id_capture.lineage_files import FileLineageStore
from nemo_gym.token_id_capture.protocols import TokenCaptureSnapshot
from nemo_gym.token_id_capture.records import (
    TokenEntry,
    TokenText,
    extract_token_fields,
    response_to_output_items,
    strip_token_fields,
    token_digest,
)
from nemo_gym.token_id_capture.store import TokenCaptureStore

Json = dict[str, Any]
TOKENS: Json = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
USER: Json = {"role": "user", "content": "hi"}


def entry(call: str = "c", *, items: list[Json] | None = None, **fields: Any) -> TokenEntry:
    values = {"rollout_id": "r", "model_call_id": call, **TOKENS, "output_items": items or [], **fields}
    return TokenEntry.model_validate(values)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_the_digest_is_that_of_the_contract(ids: list[int]) -> None:
    """Other implementations verify it, so its bytes are fixed."""
    data = b"nemo-gym-tokens" + (struct.pack(f">BQ{len(ids)}Q", 1, len(ids), *ids) if ids else b"")
    assert token_digest(ids) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("ids", [[-1], [2**64], [1.5], ["1"]])
def test_an_id_that_is_no_token_has_no_digest(ids: list[Any]) -> None:
    """A wrong id must not become a valid digest."""
    with pytest.raises(ValueError):
        token_digest(ids)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)


@given(st.lists(st.integers(0, 2**64 - 1)), JSON_VALUES)
def test_only_whole_numbers_are_token_ids(ids: list[int], other: Any) -> None:
    """Ids are written to the record without another check; a value of another kind would be read as tokens."""
    assert TokenText.of(ids).tolist() == ids
    if type(other) is int and other >= 0:
        return
    with pytest.raises(ValueError, match="token id"):
        TokenText.of([*ids, other])


@pytest.mark.parametrize("other", ["12", {}, {1, 2}])
def test_token_ids_are_a_list(other: Any) -> None:
    """The digits of a text would count as ids."""
    with pytest.raises(ValueError, match="token id"):
        TokenText.of(other)


@pytest.mark.parametrize("length", [3, 5_000])
def test_an_item_that_changes_gets_another_fingerprint(length: int) -> None:
    """Encodings of short items are kept; an agent that edits its history must not continue the earlier call."""
    text = "a" * length
    plain, in_parts = (reply(text), {**reply(""), "content": [{"type": "text", "text": text}]})
    assert assistant_fingerprint([plain]) == assistant_fingerprint([in_parts])

    before = assistant_fingerprint([plain]), conversation_digest([plain])
    plain["content"] = text + "b"
    after = assistant_fingerprint([plain]), conversation_digest([plain])

    assert before[0] != after[0] and before[1] != after[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"generation_log_probs": [-0.5, -0.6]},
        {"output_items": [{}], "token_item_index": 1},
        {"parent_resolution": "resolved"},
        {"parent_call_id": "p", "parent_resolution": "root"},
        {"prompt_is_delta": True, "parent_resolution": "root"},
        {"schema_version": 2},
    ],
)
def test_a_contradictory_record_is_refused(fields: Json) -> None:
    """A record is evidence; it must be consistent."""
    with pytest.raises(ValueError):
        entry(**fields)


@pytest.mark.parametrize(
    "payload",
    [
        {"output": [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", **TOKENS}]},
        {"choices": [{"message": {"role": "assistant", "content": "x", **TOKENS}}]},
    ],
)
def test_token_fields_are_read_from_both_dialects(payload: Json) -> None:
    """The capture is the same whichever endpoint the agent calls."""
    fields = extract_token_fields(payload)
    assert fields is not None
    assert list(fields)[:3] == list(TOKENS.values())
    items, index = strip_token_fields(response_to_output_items(payload))
    assert "prompt_token_ids" not in items[index]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"output": [dict(TOKENS), dict(TOKENS)]}, "2 items"),
        ({"output": [{"prompt_token_ids": [1]}]}, "without generation_token_ids"),
        ({"output": [{**TOKENS, "generation_log_probs": [float("nan")]}]}, "not a finite"),
        ({"output": [{**TOKENS, "generation_log_probs": ["NaN"]}]}, "not a finite"),
        ({"output": [{**TOKENS, "generation_log_probs": []}]}, "1 generated ids and 0"),
        ({"choices": [{"message": {}}, {"message": {}}]}, "2 choices"),
        ({"error": "x"}, "neither"),
    ],
)
def test_an_answer_with_doubtful_tokens_is_refused(payload: Json, problem: str) -> None:
    """Doubtful tokens must mark the rollout instead of being trained on."""
    with pytest.raises(ValueError, match=problem):
        extract_token_fields(payload)


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b": 1, "a": 2}'}}
SAME_TURN = [
    [{"role": "assistant", "content": "text", "tool_calls": [CALL]}],
    [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "text"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":2,"b":1}'},
    ],
    [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "text"},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2, "b": 1}},
            ],
        }
    ],
]


@pytest.mark.parametrize("items", SAME_TURN, ids=["chat", "responses", "messages"])
def test_a_turn_has_one_fingerprint_in_every_dialect(items: list[Json]) -> None:
    """Proxies and SDKs translate between dialects within a rollout."""
    assert assistant_fingerprint([USER, *items]) == assistant_fingerprint(SAME_TURN[0])


def test_the_bytes_of_a_fingerprint_are_those_of_the_contract() -> None:
    """A store in another language computes them too."""

    def field(tag: int, text: str) -> bytes:
        return bytes([tag]) + len(text.encode()).to_bytes(8, "big") + text.encode()

    parts = [(0, "text"), (1, "text"), (2, "c1"), (3, "add"), (4, '{"a":2,"b":1}')]
    data = b"nemo-gym-lineage" + b"".join(field(*part) for part in parts)
    assert assistant_fingerprint(SAME_TURN[0]) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"content": "other"},
        {"tool_calls": [{**CALL, "id": "c2"}]},
        {"tool_calls": [{**CALL, "function": {"name": "add", "arguments": "{}"}}]},
        {"tool_calls": [{**CALL, "function": {**CALL["function"], "namespace": "n"}}]},  # type: ignore[dict-item]
        {"tool_calls": [CALL, CALL]},
    ],
)
def test_another_turn_has_another_fingerprint(change: Json) -> None:
    """A changed turn must not be taken for the captured one."""
    assert assistant_fingerprint([{**SAME_TURN[0][0], **change}]) != assistant_fingerprint(SAME_TURN[0])


texts = st.text(max_size=5)
turns = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, texts),
        st.builds(lambda text: {"role": "assistant", "content": text}, texts),
        st.builds(lambda text: {"role": "tool", "tool_call_id": "c", "content": text}, texts),
        st.builds(lambda text: {"type": "function_call_output", "call_id": text, "output": text}, texts),
        st.builds(lambda name: {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}, texts),
    ),
    max_size=5,
)


@given(turns, turns)
def test_conversations_with_one_digest_are_equal(first: list[Json], second: list[Json]) -> None:
    """Length prefixes keep fields of neighbouring turns apart: no text can imitate a boundary."""
    is_equal = [turn for turn in first if turn] == [turn for turn in second if turn]
    assert (conversation_digest(first) == conversation_digest(second)) is is_equal


@given(turns, turns, st.lists(st.integers(0, 6), max_size=4))
def test_the_hashes_that_a_request_keeps_are_those_of_its_items(
    items: list[Json], answer: list[Json], lengths: list[int]
) -> None:
    """A request is hashed once for lookup and record; a wrong reuse would match the call of another turn."""
    request = RequestItems(items)
    for length in lengths:
        assert conversation_digest(request, length) == conversation_digest(items[:length])
    assert assistant_fingerprint(request) == assistant_fingerprint(items)
    assert assistant_fingerprint(request, RequestItems(answer)) == assistant_fingerprint([*items, *answer])
    assert assistant_fingerprint(request) == assistant_fingerprint(items), "the extension changed the request"
    assert conversation_digest(request) == conversation_digest(items)


class ToolCallItem(BaseModel):
    """A tool call as a model that accepts further fields, as those of requests do."""

    model_config = ConfigDict(extra="allow")

    type: str = "function_call"
    call_id: str = "c"
    name: str = "f"
    arguments: Any = "{}"


@pytest.mark.parametrize(
    "change", [{"name": "g"}, {"arguments": '{"a": 1}'}, {"arguments": {"a": 1}}, {"namespace": "n"}, {"call_id": "d"}]
)
def test_a_model_that_an_agent_changes_gets_another_fingerprint(change: Json) -> None:
    """Encodings are kept by the texts of an item: neither its class nor its identity may stand for them."""
    item = ToolCallItem(weight_version=3)
    before = assistant_fingerprint([item]), conversation_digest([item])
    assert before[0] == assistant_fingerprint([item.model_dump()]), "a mapping with the same fields is the same turn"

    for name, value in change.items():
        setattr(item, name, value)

    assert assistant_fingerprint([item]) != before[0] and conversation_digest([item]) != before[1]
    assert assistant_fingerprint([item]) == assistant_fingerprint([item.model_dump()])


@pytest.mark.parametrize("items", [["text"], [{"role": "assistant", "content": 5}], [{"role": "user", "content": [5]}]])
def test_an_unknown_form_has_no_fingerprint(items: list[Any]) -> None:
    """A guess could match the wrong call."""
    with pytest.raises(ValueError):
        conversation_digest(items)


def test_instructions_and_tools_are_part_of_the_context() -> None:
    """The same turns under another system prompt are another conversation."""
    bare = request_items({"input": "hi"})
    with_tools = request_items({"input": "hi", "tools": [{"name": "b"}], "instructions": "be brief"})

    assert bare == [USER]
    assert with_tools[0] == {
        "role": "_ng_request_envelope",
        "content": json.dumps({"instructions": "be brief", "tools": [{"name": "b"}]}, separators=(",", ":")),
    }


def reply(text: str) -> Json:
    return {"role": "assistant", "content": text}


def lineage_entry(call: str, request: list[Json], text: str, **fields: Any) -> LineageEntry:
    digest = token_digest([1, 2, 3])
    values: Json = {"digest": digest, "cum_len": 3, **fields}
    return LineageEntry(
        call, assistant_fingerprint([*request, reply(text)]), len(request), conversation_digest(request), **values
    )


def test_requests_are_resolved_by_text_and_context() -> None:
    """The same answer in another context is another call."""
    lineage = RolloutLineage()
    lineage.add(lineage_entry("a", [USER], "yes"))
    lineage.add(lineage_entry("b", [{"role": "user", "content": "ho"}], "yes", digest="other"))
    more = {"role": "user", "content": "more"}

    def status(*items: Json) -> tuple[str, str, str | None]:
        resolution, match = lineage.resolve(list(items))
        return resolution.status.value, resolution.reason, match.model_call_id if match else None

    assert status(USER) == ("root", "", None)
    assert status(USER, reply("yes"), more) == ("resolved", "", "a")
    assert status(more, reply("yes"), more) == ("unresolved", "no_match", None)
    assert status(USER, reply("no"), more) == ("unresolved", "no_match", None)
    lineage.add(lineage_entry("c", [USER], "yes"))
    assert status(USER, reply("yes"), more) == ("resolved", "", "a"), "equal tokens: the smallest id"
    lineage.add(lineage_entry("d", [USER], "yes", digest="another"))
    assert status(USER, reply("yes"), more) == ("unresolved", "ambiguous", None)
    with pytest.raises(ValueError, match="two different calls"):
        lineage.add(lineage_entry("a", [USER], "other"))


def test_a_call_without_text_is_continued_and_not_confused_with_its_parent() -> None:
    """An empty answer leaves the fingerprint of the conversation as it was; the longer context is the later call."""
    more = {"role": "user", "content": "more"}
    lineage = RolloutLineage()
    lineage.add(lineage_entry("first", [USER], "yes"))
    lineage.add(lineage_entry("empty", [USER, reply("yes"), more], "", digest="other", cum_len=5))
    resolution, match = lineage.resolve([USER, reply("yes"), more, reply(""), more])

    assert (resolution.status.value, match.model_call_id if match else None) == ("resolved", "empty")
    _, match = lineage.resolve([USER, reply("yes"), {"role": "user", "content": "other"}])
    assert match is not None
    assert match.model_call_id == "first"


@pytest.mark.asyncio
async def test_the_memory_store_forgets_the_oldest_rollouts() -> None:
    """A model server runs for weeks; its memory must not grow with the run."""
    store = InMemoryLineageStore(max_rollouts=2)
    fields: Json = {
        "digest": token_digest([1, 2, 3]),
        "cum_len": 3,
        "continuation_fingerprint": assistant_fingerprint([USER, reply("yes")]),
        "continuation_context_len": 1,
        "continuation_context_digest": conversation_digest([USER]),
        "fingerprint_version": 2,
    }
    for rollout in ("r1", "r2", "r3"):
        store.observe(rollout, LineageEntry.of(entry("c", **fields)), CachedCall.of([1, 2, 3], [-0.5]))
    statuses = [(await store.resolve(rollout, [USER, reply("yes")])).status.value for rollout in ("r1", "r2", "r3")]

    assert statuses == ["unresolved", "resolved", "resolved"]
    assert set(capture_health_snapshot()) == {"resolutions", "capture_failures"}


@pytest.mark.asyncio
async def test_the_file_stores_conform(tmp_path: Path) -> None:
    """Our own stores are held to the rules for others."""
    names = await run_conformance(
        lambda: TokenCaptureStore(tmp_path), lambda: TokenCaptureStore(tmp_path), lambda: FileLineageStore(tmp_path)
    )

    assert names == [
        "put_then_freeze_visibility",
        "idempotent_reput",
        "conflicting_reput",
        "mark_incomplete_durability",
        "freeze_idempotency",
        "post_freeze_write_safety",
        "conditional_retirement",
        "lineage_visibility",
        "fresh_client_lineage_visibility",
        "begin_call_custody",
    ]


class ForgetfulStore(TokenCaptureStore):
    """Breaks one rule."""

    broken_rule = ""

    async def put(self, entry: TokenEntry) -> Any:
        return None if self.broken_rule == "put" else await super().put(entry)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "", *, reason: str = "") -> None:
        if self.broken_rule != "mark":
            await super().mark_incomplete(rollout_id, model_call_id, reason=reason)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        return (
            True
            if self.broken_rule == "drop"
            else await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)
        )

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        snapshot = await super().freeze(rollout_id)
        return snapshot.model_copy(update={"version": 1}) if self.broken_rule == "version" else snapshot


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("rule", "check"),
    [
        ("put", "put_then_freeze_visibility"),
        ("mark", "mark_incomplete_durability"),
        ("drop", "conditional_retirement"),
        ("version", "mark_incomplete_durability"),
    ],
)
async def test_a_store_that_breaks_a_rule_is_named(tmp_path: Path, rule: str, check: str) -> None:
    """A runner that passes everything proves nothing."""

    def build() -> ForgetfulStore:
        store = ForgetfulStore(tmp_path)
        store.broken_rule = rule
        return store

    with pytest.raises(ConformanceError) as error:
        await run_conformance(build, build)
    assert error.value.check_name == check


@pytest.mark.asyncio
async def test_a_torn_line_makes_the_rollout_incomplete_and_loses_no_other(tmp_path: Path) -> None:
    """A crash in the middle of a write must not hide the calls before and after it."""
    store = TokenCaptureStore(tmp_path)
    await store.put(entry("c1"))
    with store.path_for("r").open("ab") as file:
        file.write(b'{"rollout_id": "r", "model_')
    await store.put(entry("c2"))
    snapshot = await TokenCaptureStore(tmp_path).freeze("r")

    assert [item.model_call_id for item in snapshot.entries] == ["c1", "c2"]
    assert snapshot.incomplete
    assert "line 2" in snapshot.reasons[0]


@pytest.mark.asyncio
async def test_a_rollout_that_starts_again_is_not_mixed_with_its_remains(tmp_path: Path) -> None:
    """The collector clears a rollout that it sends again; the model server has its old index in memory."""
    store, lineage = TokenCaptureStore(tmp_path), FileLineageStore(tmp_path)
    fields: Json = {
        "digest": token_digest([1, 2, 3]),
        "cum_len": 3,
        "continuation_fingerprint": assistant_fingerprint([USER, reply("yes")]),
        "continuation_context_len": 1,
        "continuation_context_digest": conversation_digest([USER]),
        "fingerprint_version": 2,
    }
    for call in ("first", "second"):
        store.clear(["r"])
        stored = entry(call, **fields)
        lineage.observe("r", LineageEntry.of(stored, await store.put(stored)), CachedCall.of([1, 2, 3], [-0.5]))
        resolution = await lineage.resolve("r", [USER, reply("yes")])
        assert resolution.match is not None
        assert resolution.match.model_call_id == call


class CountingLineageStore(FileLineageStore):
    """Counts the records that are loaded from files."""

    loaded = 0

    async def _load_entry(self, rollout_id: str, ref: Any) -> TokenEntry:
        self.loaded += 1
        return await super()._load_entry(rollout_id, ref)


@pytest.mark.asyncio
async def test_the_rollouts_of_the_next_collection_are_not_read_back(tmp_path: Path) -> None:
    """Collections count rollouts from 0-0; with running servers, each call of the second one read its file."""
    store, lineage = TokenCaptureStore(tmp_path), CountingLineageStore(tmp_path)
    fields: Json = {
        "continuation_fingerprint": assistant_fingerprint([USER, reply("yes")]),
        "continuation_context_len": 1,
        "continuation_context_digest": conversation_digest([USER]),
        "fingerprint_version": 2,
        "cum_len": 3,
    }
    for call, tokens in (("first", [1, 2, 3]), ("a second call", [1, 2, 4])):
        stored = entry(call, **fields, digest=token_digest(tokens), prompt_token_ids=[1, 2])
        stored = stored.model_copy(update={"generation_token_ids": tokens[2:]})
        lineage.observe("r", LineageEntry.of(stored, await store.put(stored)), CachedCall.of(tokens, [-0.5]))
        resolution = await lineage.resolve("r", [USER, reply("yes")])
        assert resolution.match is not None
        assert list(resolution.match.cumulative_token_ids) == tokens
        snapshot = await store.freeze("r")
        assert await store.drop("r", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert lineage.loaded == 0
