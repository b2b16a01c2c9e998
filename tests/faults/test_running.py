"""Faults while servers run: each is a typed failure with a name, and everything else keeps running."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER, UPSTREAM_STATUS_HEADER


@pytest.mark.parametrize(
    ("fault", "typed", "words"),
    [
        ("down", {ERROR_HEADER: "ServerUnreachable"}, "check that it runs and that its host and port are right"),
        ("slow", {ERROR_HEADER: "DeadlineExceeded"}, " within "),
        ("wrong_key", {UPSTREAM_STATUS_HEADER: "401"}, "Incorrect API key"),
        ("wrong_json", {ERROR_HEADER: "ModelFailed"}, "the answer is not JSON"),
        ("wrong_shape", {ERROR_HEADER: "ModelFailed"}, "check that the configured address is an endpoint of this API"),
        ("half_body", {ERROR_HEADER: "ServerUnreachable"}, "the answer broke off"),
    ],
)
def test_a_model_endpoint_that_misbehaves_is_named(
    playground: Any, fault: str, typed: dict[str, str], words: str
) -> None:
    """The failure must name the model and its fault, and never the API key."""
    seconds = 1.0 if fault in ("down", "slow") else 30.0

    status, body, headers = playground.rollout(f"agent_{fault}", seconds)

    assert status in (500, 504)
    # Both deadlines end together: either may be reported, but it must be a deadline.
    assert headers[FAILED_HEADER] in ([f"model_{fault}", "agent_slow"] if fault == "slow" else [f"model_{fault}"])
    assert typed.items() <= headers.items()
    assert words in body
    assert "sk-secret-123" not in body + str(headers)
    assert playground.is_fine()


def test_a_model_that_is_gone_ends_all_rollouts_at_once(playground: Any) -> None:
    """Fifty rollouts with five minutes each must not wait five minutes, nor one after the other."""
    with ThreadPoolExecutor(50) as threads:
        replies = list(threads.map(lambda _: playground.rollout("agent_gone", 300.0), range(50)))

    assert {headers[FAILED_HEADER] for _, _, headers in replies} == {"model_gone"}
    assert {headers[ERROR_HEADER] for _, _, headers in replies} <= {"ServerUnreachable", "CircuitOpen"}
    assert playground.is_fine()


def test_a_tool_result_of_100_mb_becomes_one_sentence(playground: Any) -> None:
    """It would not fit any model, and must not fill the memory of a cell."""
    status, body, _ = playground.rollout("agent_tool_flood")

    outputs = [item["output"] for item in body["response"]["output"] if item["type"] == "function_call_output"]
    assert status == 200
    assert outputs == ['{"error": "The tool\'s answer is longer than 10,000,000 bytes. Ask for less."}']
    assert "tools /flood" in playground.wait_for_line("longer than 10,000,000 bytes")
    assert playground.is_fine()


def test_a_tool_that_blocks_the_loop_is_named_while_it_does(playground: Any) -> None:
    """Everything in the process waits; within a second the log names the cause."""
    with ThreadPoolExecutor(1) as threads:
        rollout = threads.submit(playground.rollout, "agent_tool_block")
        playground.wait_for_line("tools: POST /block has blocked the event loop")
        playground.go.touch()

    assert rollout.result()[0] == 200
    assert playground.is_fine()


def test_a_tool_that_crashes_is_text_for_the_model(playground: Any) -> None:
    """A model can recover from a tool error; the rollout must go on."""
    status, body, _ = playground.rollout("agent_tool_crash")

    outputs = [item["output"] for item in body["response"]["output"] if item["type"] == "function_call_output"]
    assert status == 200
    assert "boiler exploded" in outputs[0]
    assert playground.is_fine()


@pytest.mark.parametrize("value", ["eyJmb3JnZWQiOiB0cnVlfQ==.sig", "x" * 3000, '{"session_id": "another"}', "%00"])
def test_a_forged_session_cookie_opens_a_new_session(playground: Any, value: str) -> None:
    """A cookie that we did not sign must not open another session, and is no error either."""
    _, first, headers = playground.call("tools", "/whoami")
    name, _, genuine = headers["set-cookie"].partition(";")[0].partition("=")

    _, second, _ = playground.call("tools", "/whoami", Cookie=f"{name}={genuine}")
    status, forged, _ = playground.call("tools", "/whoami", Cookie=f"{name}={value}")
    _, altered, _ = playground.call("tools", "/whoami", Cookie=f"{name}={genuine[:-2]}zz")

    assert second["session"] == first["session"]
    assert status == 200
    assert len({first["session"], forged["session"], altered["session"]}) == 3
