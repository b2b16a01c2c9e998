"""What is sent to `/verify`: what the run said, and a response whose items are what they claim to be."""

from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseOutputMessage
from responses_api_agents.simple_agent.app import SimpleAgentRunRequest, verify_request

TEXT = {"type": "output_text", "text": "hi", "annotations": []}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [TEXT]}
RESPONSE = NeMoGymResponse(
    id="r", created_at=1.0, model="m", object="response", output=[MESSAGE], parallel_tool_calls=True,
    tool_choice="auto", tools=[],
)  # fmt: skip


def test_the_row_and_the_response_pass_as_they_are() -> None:
    """Both were validated when they came in; doing it again is most of what a verdict would cost."""
    body = SimpleAgentRunRequest.model_validate({"responses_create_params": {"input": "x"}, "expected": 3})

    asked = verify_request(body, RESPONSE)

    assert asked.responses_create_params is body.responses_create_params
    assert asked.response is RESPONSE
    assert asked.model_dump(exclude_unset=True) == {
        **body.model_dump(exclude_unset=True),
        "response": RESPONSE.model_dump(exclude_unset=True),
    }


def test_items_that_a_subclass_put_in_unchecked_are_checked() -> None:
    """An episode of somebody else's may leave plain dictionaries in the output; a verifier must not find them."""
    body = SimpleAgentRunRequest.model_validate({"responses_create_params": {"input": "x"}})
    loose = RESPONSE.model_copy(update={"output": [MESSAGE]})

    assert isinstance(verify_request(body, loose).response.output[0], NeMoGymResponseOutputMessage)
