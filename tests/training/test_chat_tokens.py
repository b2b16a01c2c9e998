"""Prompts keep the tokens that the model sampled, for every template whose turns end with an end token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import ModelFailed
from nemo_gym.training.chat_tokens import parse_hermes, render_prompt

Json = dict[str, Any]
END = 0


class CharacterTokenizer:
    """Renders `role:text` with one token for each character; thoughts in brackets are dropped from earlier turns."""

    eos_token_id = END

    def __init__(self, *, with_ends: bool = True) -> None:
        self.with_ends = with_ends

    def apply_chat_template(
        self, conversation: list[Json], *, add_generation_prompt: bool = False, **_options: Any
    ) -> list[int]:
        ids: list[int] = []
        for number, message in enumerate(conversation):
            text = message["content"] + "".join(call["function"]["name"] for call in message.get("tool_calls", []))
            if message["role"] == "assistant" and number < len(conversation) - 1:
                text = text.rpartition("]")[2]
            ids += [*map(ord, f"{message['role']}:{text}"), *([END] if self.with_ends else []), ord("\n")]
        return [*ids, *map(ord, "assistant:" if add_generation_prompt else "")]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(token) for token in token_ids if not (skip_special_tokens and token == END))


TOKENIZER = CharacterTokenizer()
TEXT = st.text(st.characters(min_codepoint=97, max_codepoint=122), max_size=6)
THOUGHT = st.sampled_from(["", "[why]"])


@given(
    question=TEXT,
    thought=THOUGHT,
    reply=TEXT,
    sampled=st.lists(st.integers(1, 2**16), min_size=1, max_size=8),
    ended=st.booleans(),
    rest=st.lists(st.tuples(st.sampled_from(["tool", "user"]), TEXT), min_size=1, max_size=3),
)
def test_a_prompt_starts_with_the_sampled_tokens_and_goes_on_as_the_template_does(
    question: str, thought: str, reply: str, sampled: list[int], ended: bool, rest: list[tuple[str, str]]
) -> None:
    """Whatever was sampled, also what no tokenizer would write, and also if the template drops earlier thoughts."""
    user = {"role": "user", "content": question}
    prompt = TOKENIZER.apply_chat_template([user], add_generation_prompt=True)
    sampled = [*sampled, END] if ended else sampled
    fields = {
        "prompt_token_ids": prompt,
        "generation_token_ids": sampled,
        "generation_log_probs": [-1.0] * len(sampled),
    }
    turn = {"role": "assistant", "content": thought + reply, **fields}
    later = [{"role": role, "content": text} for role, text in rest]

    result = render_prompt(TOKENIZER, [user, turn, *later], None, [END])

    own = prompt + sampled
    assert result[: len(own)] == own
    tail = TOKENIZER.apply_chat_template([{"role": "x", "content": ""}, *later], add_generation_prompt=True)
    expected = tail[len("x:") :]  # from the end token of the turn before
    assert result[len(own) :] == (expected[1:] if ended else expected)


def test_a_conversation_without_token_fields_is_rendered_whole() -> None:
    """The first turn, and turns that another model wrote."""
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "?"},
    ]

    assert render_prompt(TOKENIZER, messages, None, [END]) == TOKENIZER.apply_chat_template(
        messages, add_generation_prompt=True
    )


def test_a_template_without_end_tokens_is_refused() -> None:
    """Guessing where the turn ends would put wrong tokens into every later prompt."""
    fields = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", **fields}]

    with pytest.raises(ModelFailed, match="does not show where an earlier turn ends"):
        render_prompt(CharacterTokenizer(with_ends=False), messages, None, [END])


def test_content_that_is_not_text_is_refused() -> None:
    """A picture that the model never saw must not look like an empty message."""
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}

    with pytest.raises(ModelFailed, match="text only, not image_url"):
        render_prompt(TOKENIZER, [message], None, [END])


@pytest.mark.parametrize(
    ("text", "names", "content"),
    [
        ('I look. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', ["f"], "I look."),
        ('<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>', ["f", "g"], None),
        ("<tool_call>{not json}</tool_call>", [], "<tool_call>{not json}</tool_call>"),
        ('<tool_call>{"arguments": {}}</tool_call>', [], '<tool_call>{"arguments": {}}</tool_call>'),
        ("7", [], "7"),
    ],
)
def test_tool_calls_are_read_from_their_tags(text: str, names: list[str], content: str | None) -> None:
    """A malformed call stays text: it is a mistake of the model, not a failure."""
    parsed = parse_hermes(text)

    assert [call["function"]["name"] for call in parsed.get("tool_calls", [])] == names
    assert parsed["content"] == content
