"""The body of `/verify`: the fields of the run request, and a validated response."""

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseOutputMessage
from nemo_gym.wire.token_usage import NeMoGymResponseUsage
from responses_api_agents.simple_agent.app import SimpleAgentRunRequest, episode_response, verify_request

TEXT = {"type": "output_text", "text": "hi", "annotations": []}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [TEXT]}
RESPONSE = NeMoGymResponse(
    id="r", created_at=1.0, model="m", object="response", output=[MESSAGE], parallel_tool_calls=True,
    tool_choice="auto", tools=[],
)  # fmt: skip


def test_validated_parts_are_not_validated_again() -> None:
    """Validating row and response again would be most of the cost of a verdict."""
    body = SimpleAgentRunRequest.model_validate({"responses_create_params": {"input": "x"}, "expected": 3})

    verify_body = verify_request(body, RESPONSE)

    assert verify_body.responses_create_params is body.responses_create_params
    assert verify_body.response is RESPONSE
    assert verify_body.model_dump(exclude_unset=True) == {
        **body.model_dump(exclude_unset=True),
        "response": RESPONSE.model_dump(exclude_unset=True),
    }


def test_unvalidated_items_of_a_subclass_are_validated() -> None:
    """An episode of a subclass may contain dictionaries, which verifiers do not expect."""
    body = SimpleAgentRunRequest.model_validate({"responses_create_params": {"input": "x"}})
    loose = RESPONSE.model_copy(update={"output": [MESSAGE]})

    assert isinstance(verify_request(body, loose).response.output[0], NeMoGymResponseOutputMessage)


def usage_of(tokens: int) -> NeMoGymResponseUsage:
    return NeMoGymResponseUsage(input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1)


def test_the_usage_of_an_episode_is_that_of_its_turns() -> None:
    """An answer that a limit ended has no tokens and is no turn; its own count would replace that of the episode."""
    answer = RESPONSE.model_copy(update={"usage": usage_of(5)})
    too_long = RESPONSE.model_copy(update={"usage": usage_of(0), "output": []})
    items = [*RESPONSE.output]

    one_turn = episode_response(answer, items, [answer.usage])
    limited = episode_response(too_long, items, [answer.usage])

    assert one_turn.output is items
    assert one_turn.usage is answer.usage
    assert limited.output is items
    assert limited.usage is not None
    assert limited.usage.total_tokens == 6


def test_an_episode_without_counts_has_no_usage() -> None:
    """A zero would enter the totals of a run as if the endpoint had counted."""
    assert episode_response(RESPONSE, [*RESPONSE.output], [None]).usage is None
