"""External staging: a worker keeps the tokens, the model server a ledger, a framework verifies both."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from nemo_gym.token_id_capture.config import TokenCaptureConfigError
from nemo_gym.token_id_capture.lineage_files import FileLineageStore
from nemo_gym.token_id_capture.staging import digests
from nemo_gym.token_id_capture.staging.client import MANIFEST_PATH, ControlRequestFailed, RolloutControlClient
from nemo_gym.token_id_capture.staging.conformance import assert_golden_vectors
from nemo_gym.token_id_capture.staging.receipts import ReceiptVerificationError, verify_and_linearize
from nemo_gym.token_id_capture.staging.records import (
    CallRecord,
    CaptureAdmission,
    CaptureLedger,
    CommitCoords,
    RolloutManifest,
    RolloutReceipt,
    StagedCallRecord,
    StagedCallSnapshot,
    StageResult,
    staging_key,
)
from nemo_gym.token_id_capture.staging.routed_experts import (
    classify_route_span,
    decode_routed_experts,
    encode_routed_experts,
)
from nemo_gym.token_id_capture.staging.terminal import select_terminal_call
from nemo_gym.token_id_capture.staging.worker import RolloutTokenCapture, install_capture
from tests.token_id_capture.capture_world import (
    Engine,
    HabitAgent,
    Json,
    capture_world,
    final_response,
    output_text,
)

USER = {"role": "user", "content": "what is 2 + 1?"}
TOKEN = "control-token-of-this-test"


class Staging:
    """Sink and source in memory."""

    def __init__(self) -> None:
        self.calls: dict[str, StagedCallRecord] = {}

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        key = staging_key(record.rollout_id, record.model_call_id)
        self.calls[key] = record
        return StageResult(ok=True, staging_key=key)

    def fetch(self, keys: list[str]) -> list[StagedCallSnapshot]:
        return [StagedCallSnapshot.model_validate(self.calls[key].model_dump()) for key in keys]

    def tokens(self, keys: Any) -> list[int]:
        return [token for key in keys for token in self.calls[key].token_ids_delta]


class StagingEngine(Engine):
    """The mock engine behind a worker's capture; it takes a prefix of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.staging = Staging()
        self.worker = install_capture(
            self.serve, sink=self.staging, weight_version_fn=lambda: 7, fetch_prefix=self.staging.tokens
        )

    async def serve(self, body: Json) -> Json:
        prefix = body.pop("required_prefix_token_ids", None)
        if prefix:
            last = max(index for index, message in enumerate(body["messages"]) if message["role"] == "assistant")
            fields = {"prompt_token_ids": prefix, "generation_token_ids": []}
            body["messages"][last] = {**body["messages"][last], **fields}
        return self.answer(body)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        return web.json_response(await self.worker(body))


async def two_turns(agent: HabitAgent, row: Json) -> Json:
    _, first = await agent.chat(row, [USER])
    response_id, last = await agent.chat(row, [USER, first, {"role": "user", "content": "sure?"}])
    return final_response(response_id, [output_text(first["content"]), output_text(last["content"])])


def block(tmp_path: Path) -> Json:
    return {
        "enabled": True,
        "all_agents": True,
        "dir": str(tmp_path / "ledger"),
        "external_staging": True,
        "rebuild_response": False,
    }


def receipt_of(manifest: RolloutManifest, terminal: str) -> RolloutReceipt:
    return RolloutReceipt(
        rollout_id=manifest.rollout_id,
        reward=1.0,
        terminal_model_call_id=terminal,
        terminal_selection="heuristic",
        manifest=manifest.records,
    )


@pytest.mark.asyncio
async def test_a_rollout_is_verified_from_worker_and_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token array passes the model server, and the framework still proves which tokens the policy generated."""
    monkeypatch.setenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", TOKEN)
    engine = StagingEngine()
    async with capture_world(block(tmp_path), two_turns, engine=engine, return_token_id_information=False) as world:
        await world.collect(tmp_path)
        app = web.Application()

        async def forward(request: web.Request) -> web.Response:
            headers = {"authorization": request.headers.get("authorization", "")}
            reply = await world.client.get("policy", request.path, headers=headers)
            return web.Response(status=reply.status, body=await reply.read(), content_type="application/json")

        app.router.add_get("/{path:.*}", forward)
        async with TestServer(app, shutdown_timeout=0.1) as server:
            url = str(server.make_url("/"))
            async with RolloutControlClient(url, auth_token=TOKEN) as control:
                manifest = await control.manifest("0-0")
            async with RolloutControlClient(url, auth_token="wrong") as stranger:
                with pytest.raises(ControlRequestFailed, match="401"):
                    await stranger.manifest("0-0")

    assert manifest.failures == []
    choice = select_terminal_call(manifest.records)
    assert choice.reason == "selected"
    snapshots = engine.staging.fetch([record.staging_key for record in manifest.records])
    row = verify_and_linearize(receipt_of(manifest, choice.model_call_id or ""), snapshots)
    (first_prompt, first), (second_prompt, second) = engine.generations
    assert row.token_ids == [*second_prompt, *second]
    assert second_prompt[: len(first_prompt) + len(first)] == [*first_prompt, *first]
    generated = [token for token, mask in zip(row.token_ids, row.token_mask, strict=True) if mask]
    assert generated == [*first, *second]
    assert row.weight_versions == [7, 7]
    assert row.prompt_len == len(first_prompt)


@pytest.mark.asyncio
async def test_a_worker_without_coordinates_is_a_failure_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without the capture must not look like a rollout without calls."""
    monkeypatch.setenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", TOKEN)
    async with capture_world(block(tmp_path), two_turns, return_token_id_information=False) as world:
        await world.collect(tmp_path)

    manifest = await FileLineageStore(tmp_path / "ledger").manifest("0-0")
    assert manifest.records == []
    assert {failure.reason for failure in manifest.failures} == {"worker_response_missing_commit_coordinates"}


@pytest.mark.asyncio
async def test_staging_needs_a_control_token_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that no framework can read is useless, and an open one would be a leak."""
    monkeypatch.delenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", raising=False)
    with pytest.raises(TokenCaptureConfigError, match="NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN is not set"):
        async with capture_world(block(tmp_path), two_turns, return_token_id_information=False):
            pass


@pytest.mark.parametrize("transport", ["chat", "tokens", "auto"])
@pytest.mark.asyncio
async def test_staging_refuses_token_ids_in_answers_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """The worker keeps the tokens: every call would fail because its answer has no ids."""
    monkeypatch.setenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="return_token_id_information: false"):
        async with capture_world(block(tmp_path), two_turns, transport=transport):
            pass


@pytest.mark.asyncio
async def test_the_control_route_refuses_a_bad_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error of the framework is not a bug of the server, which a 500 would report."""
    monkeypatch.setenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", TOKEN)
    async with capture_world(block(tmp_path), two_turns, return_token_id_information=False) as world:
        path = MANIFEST_PATH.format(rollout_id="-bad")
        reply = await world.client.get("policy", path, headers={"authorization": f"Bearer {TOKEN}"})
        problem = await reply.read()

    assert (reply.status, b"not a rollout id" in problem) == (400, True)


def test_the_file_store_is_a_ledger(tmp_path: Path) -> None:
    """The start-up check asks for the protocol."""
    assert isinstance(FileLineageStore(tmp_path), CaptureLedger)


def test_the_golden_vectors_of_the_contract_hold() -> None:
    """Workers and frameworks elsewhere compute the same digests."""
    assert_golden_vectors()


def staged_chain(*deltas: tuple[list[int], list[int]]) -> tuple[list[CallRecord], list[StagedCallSnapshot]]:
    """Stage calls that continue each other: suffix of the prompt and generation of each."""
    staging = Staging()
    capture = RolloutTokenCapture(staging, weight_version_fn=lambda: 3)
    records: list[CallRecord] = []
    prefix: list[int] = []
    for number, (suffix, generation) in enumerate(deltas):
        parent = records[-1] if records else None
        fields: Json = {"mode": "text"}
        if parent is not None:
            fields = {
                "mode": "token_in",
                "parent_call_id": parent.model_call_id,
                "prev_len": len(prefix),
                "parent_chain_hash": parent.chain_hash,
                "required_prefix_token_ids": prefix,
            }
        admission = CaptureAdmission(rollout_id="r", model_call_id=f"c{number}", **fields)
        prompt = [*prefix, *suffix]
        coords = capture.complete_call(
            capture.begin_call(admission),
            prompt_token_ids=prompt,
            generation_token_ids=generation,
            generation_log_probs=[-0.5] * len(generation),
        )
        assert coords.disposition == "staged", coords.error
        names = CallRecord.model_fields.keys() & CommitCoords.model_fields.keys()
        values = {name: getattr(coords, name) for name in names}
        records.append(CallRecord(**values, mode=admission.mode, response_id=f"resp{number}", admitted_at=number))
        prefix = [*prompt, *generation]
    return records, staging.fetch([record.staging_key for record in records])


ids = st.lists(st.integers(0, 2**40), min_size=1, max_size=6)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=4))
def test_any_chain_of_calls_comes_back_as_one_row(deltas: list[tuple[list[int], list[int]]]) -> None:
    """The row is the concatenation of the deltas, and the mask marks exactly the generations."""
    records, snapshots = staged_chain(*deltas)
    manifest = RolloutManifest(rollout_id="r", records=records)

    row = verify_and_linearize(receipt_of(manifest, records[-1].model_call_id), snapshots)

    assert row.token_ids == [token for suffix, generation in deltas for token in (*suffix, *generation)]
    assert row.token_mask == [mask for s, g in deltas for mask in (*[0.0] * len(s), *[1.0] * len(g))]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"weight_version": 4}, "corrupt_digest"),
        ({"token_ids_delta": [9, 9]}, "corrupt_digest"),
        ({"digest_version": 1}, "unsupported_digest_version"),
    ],
)
def test_a_changed_staged_call_is_refused(change: Json, code: str) -> None:
    """Storage between worker and trainer is not trusted."""
    records, snapshots = staged_chain(([1], [2]), ([3], [4]))
    changed = snapshots[0].model_copy(update=change)

    with pytest.raises(ReceiptVerificationError, match=code):
        verify_and_linearize(
            receipt_of(RolloutManifest(rollout_id="r", records=records), "c1"), [changed, snapshots[1]]
        )


def test_a_receipt_is_checked_against_its_rows() -> None:
    """A missing, duplicated or poisoned row must not become a shorter sample."""
    records, snapshots = staged_chain(([1], [2]), ([3], [4]))
    whole = receipt_of(RolloutManifest(rollout_id="r", records=records), "c1")
    cases = {
        "row_count_mismatch": (whole, snapshots[:1]),
        "missing_terminal": (whole.model_copy(update={"terminal_model_call_id": "x"}), snapshots),
        "capture_poisoned": (whole.model_copy(update={"capture_poisoned": True}), snapshots),
        "rollout_failed": (whole.model_copy(update={"failure_reason": "timeout"}), snapshots),
        "empty_manifest": (whole.model_copy(update={"manifest": []}), []),
        "missing_parent": (whole.model_copy(update={"manifest": records[1:]}), snapshots[1:]),
        "duplicate_model_call_id": (whole.model_copy(update={"manifest": [records[1]] * 2}), [snapshots[1]] * 2),
    }
    for code, (receipt, staged) in cases.items():
        with pytest.raises(ReceiptVerificationError) as refusal:
            verify_and_linearize(receipt, staged)
        assert refusal.value.reason == code


def test_a_prompt_without_its_prefix_is_not_staged() -> None:
    """The worker, which sees the real prompt, is the witness that the prefix was used."""
    capture = RolloutTokenCapture(Staging())
    admission = CaptureAdmission(
        rollout_id="r",
        model_call_id="c",
        mode="token_in",
        parent_call_id="p",
        prev_len=2,
        parent_chain_hash="11" * 32,
        required_prefix_token_ids=[1, 2],
    )

    coords = capture.complete_call(
        capture.begin_call(admission), prompt_token_ids=[1, 3, 4], generation_token_ids=[5], generation_log_probs=[-1.0]
    )

    assert coords.disposition == "capture_failed"
    assert "does not begin" in str(coords.error)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "text", "prev_len": 3},
        {"mode": "token_in", "parent_call_id": "p", "prev_len": 3},
        {
            "mode": "token_in",
            "parent_call_id": "p",
            "prev_len": 3,
            "parent_chain_hash": "h",
            "required_prefix_token_ids": [1],
        },
    ],
)
def test_a_contradictory_admission_is_refused(fields: Json) -> None:
    """A worker acts on it, so it must be consistent."""
    with pytest.raises(ValueError):
        CaptureAdmission(rollout_id="r", model_call_id="c", **fields)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(-1, 70_000))
def test_routed_experts_survive_their_envelope(tokens: int, layers: int, experts: int, number: int) -> None:
    """The trainer replays the routes of the engine."""
    routes = [[[number] * experts for _ in range(layers)] for _ in range(tokens)]

    assert decode_routed_experts(encode_routed_experts(routes)) == routes
    span = classify_route_span(routes, cum_len=9, delta_len=tokens)
    assert span == ("sentinel" if number == -1 else "tail")


def test_the_terminal_call_of_a_ledger_is_selected_by_its_shape() -> None:
    """Without a witness the conversation that goes on is the main one; two that go on are ambiguous."""
    (first, second), _ = staged_chain(([1], [2]), ([3], [4]))
    lonely = first.model_copy(update={"model_call_id": "title", "admitted_at": -1.0})
    other = second.model_copy(update={"model_call_id": "c2"})

    assert select_terminal_call([lonely, first, second]).model_call_id == "c1"
    assert select_terminal_call([first, second, other]).reason == "ambiguous_terminal"
    assert select_terminal_call([second]).reason == "orphaned_row"
    assert select_terminal_call([first, first]).reason == "duplicate_call_id"
    assert select_terminal_call([]).reason == "no_records"


@given(st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text()))
def test_the_digest_of_extras_ignores_the_order_of_keys(extras: Json) -> None:
    """Objects have no order, and types must not collide."""
    backwards = dict(reversed(extras.items()))
    assert digests.extras_digest(extras) == digests.extras_digest(backwards)
    assert digests.extras_digest({"a": 1}) != digests.extras_digest({"a": 1.0}) != digests.extras_digest({"a": True})
