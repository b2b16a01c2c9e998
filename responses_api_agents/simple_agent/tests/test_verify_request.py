"""The body of `/verify`: the fields of the run request, and a validated response."""

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseOutputMessage
from responses_api_agents.simple_agent.app import SimpleAgentRunRequest, verify_request

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
