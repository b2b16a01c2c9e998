"""What the model finally said: the text of its last message, without its reasoning."""

import re

from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed
from nemo_gym.wire.items import NeMoGymEasyInputMessage, NeMoGymResponseOutputMessage
from nemo_gym.wire.parts import NeMoGymResponseOutputText
from nemo_gym.wire.responses import NeMoGymResponse

_NAMES = r"(?:seed:)?(?:think(?:ing)?|thought|reason(?:ing)?|scratchpad|analysis|reflection)"
_TAG = re.compile(
    rf"<(?P<close>/)?{_NAMES}>|\[(?P<close2>/)?THINK\]|◁(?P<close3>/)?think▷|<\|(?P<end>end|begin)_of_thought\|>"
    r"|<\|channel\|>(?P<channel>analysis|commentary|final)(?:[ \w=.]{0,64})<\|message\|>",
    re.IGNORECASE,
)


def without_reasoning(text: str) -> Extraction[str]:
    """`text` after its last closed reasoning block; all of it when there is none.

    A closing tag without an opening one counts, because chat templates write the opening one into the prompt.
    Reasoning that was never closed hides everything: the model was cut off before it answered.
    """
    start, is_open = 0, False
    for tag in _TAG.finditer(text):
        closes = tag["close"] or tag["close2"] or tag["close3"] or tag["end"] == "end" or tag["channel"] == "final"
        is_open = not closes
        if closes:
            start = tag.end()
    if is_open:
        return Unparsed("the reasoning is not closed")
    rest = text[start:]
    if not rest.strip():
        return Unparsed("nothing after the reasoning" if start else "the text is empty")
    return Extracted(rest, (start, len(text)), "after_reasoning" if start else "whole_text")


def assistant_texts(response: NeMoGymResponse) -> list[str]:
    """The text of each assistant message in `response`, in order. Reasoning items and tool calls are not text."""
    texts = []
    for item in response.output:
        if isinstance(item, NeMoGymResponseOutputMessage):
            texts.append("".join(part.text for part in item.content if isinstance(part, NeMoGymResponseOutputText)))
        elif isinstance(item, NeMoGymEasyInputMessage) and item.role == "assistant":
            if isinstance(item.content, str):
                texts.append(item.content)
            else:
                texts.append("".join(part["text"] for part in item.content if part["type"] == "output_text"))
    return texts


def last_assistant_text(response: NeMoGymResponse) -> Extraction[str]:
    """The text of the last assistant message, reasoning stripped. The span is in that message."""
    texts = assistant_texts(response)
    if not texts:
        return Unparsed("there is no assistant message")
    return without_reasoning(texts[-1])
