r"""Find the answer inside a reply: the final text without reasoning, the last `\boxed{…}`, fenced code blocks."""

import re
from collections.abc import Collection

from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer
from nemo_gym.wire.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)

MAX_CHARACTERS = 1 << 20
"""Maximum length of a text that is searched for fenced blocks or parsed as data."""

_REASONING = r"(?:seed:)?(?:think(?:ing)?|thought|reason(?:ing)?|scratchpad|analysis|reflection)"
_REASONING_TAG = re.compile(
    rf"<(?P<close>/)?{_REASONING}>|\[(?P<close2>/)?THINK\]|◁(?P<close3>/)?think▷|<\|(?P<end>end|begin)_of_thought\|>"
    r"|<\|channel\|>(?P<channel>analysis|commentary|final)(?:[ \w=.]{0,64})<\|message\|>",
    re.IGNORECASE,
)
_BOX_TOKEN = re.compile(
    r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s{0,8}(?:\{|(?P<bare>[0-9A-Za-z.,]{1,32}(?=\s|\$|$)))|\\.|[{}]", re.DOTALL
)
_OPENING_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*")


def strip_reasoning(text: str) -> Extraction[str]:
    """Return `text` after its last closed reasoning block, or all of it if it has no such block.

    A closing tag without an opening tag counts, because some chat templates put the opening tag into the prompt.
    Unclosed reasoning means that the model was cut off before it answered: the result is `NoAnswer`.
    """
    start, is_open = 0, False
    for tag in _REASONING_TAG.finditer(text):
        is_closing = tag["close"] or tag["close2"] or tag["close3"] or tag["end"] == "end" or tag["channel"] == "final"
        is_open = not is_closing
        if is_closing:
            start = tag.end()
    if is_open:
        return NoAnswer("the reasoning is not closed")
    rest = text[start:]
    if not rest.strip():
        return NoAnswer("no text after the reasoning" if start else "the text is empty")
    return ExtractedAnswer(rest, (start, len(text)), "after_reasoning" if start else "whole_text")


def assistant_texts(response: NeMoGymResponse) -> list[str]:
    """Return the text of each assistant message, without reasoning items and tool calls."""
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
    """Return the text of the last assistant message without its reasoning; the span is relative to that message."""
    texts = assistant_texts(response)
    return strip_reasoning(texts[-1]) if texts else NoAnswer("no assistant message")


def find_boxes(text: str) -> tuple[list[ExtractedAnswer[str]], bool]:
    r"""Return the content of every closed `\boxed{…}`, and whether an unclosed box follows the last one.

    A nested box is part of the outer box. `\{` and `\}` are text, as in TeX. Runs in linear time.
    """
    boxes: list[ExtractedAnswer[str]] = []
    # One entry per open brace: start of the command and start of the content of a box, None for other braces.
    open_braces: list[tuple[int, int] | None] = []
    for token in _BOX_TOKEN.finditer(text):
        word = token.group()
        if word == "}":
            box_start = open_braces.pop() if open_braces else None
            if box_start is not None:
                content = text[box_start[1] : token.start()]
                _append_dropping_nested(boxes, ExtractedAnswer(content, (box_start[0], token.end()), "boxed"))
        elif word == "{":
            open_braces.append(None)
        elif token["bare"] is not None:
            _append_dropping_nested(boxes, ExtractedAnswer(token["bare"], token.span(), "boxed_token"))
        elif word.endswith("{") and word != "\\{":  # a box command with its opening brace
            open_braces.append((token.start(), token.end()))
    last_end = boxes[-1].span[1] if boxes else 0
    return boxes, any(start is not None and start[0] >= last_end for start in open_braces)


def _append_dropping_nested(boxes: list[ExtractedAnswer[str]], box: ExtractedAnswer[str]) -> None:
    """Append `box` and drop the boxes that lie inside it."""
    while boxes and boxes[-1].span[0] >= box.span[0]:
        boxes.pop()
    boxes.append(box)


def last_boxed(text: str) -> Extraction[str]:
    r"""Return the content of the last `\boxed{…}` or `\fbox{…}`.

    An empty or unclosed last box is `NoAnswer`: an earlier box is an intermediate step, not the answer.
    """
    boxes, has_open_box = find_boxes(text)
    if has_open_box:
        return NoAnswer("the last box is not closed")
    if not boxes:
        return NoAnswer("no box")
    last = boxes[-1]
    if not last.value.strip(" \t\r\n$~"):
        return NoAnswer("the last box is empty")
    return ExtractedAnswer(last.value.strip(), last.span, last.rule)


def scan_fences(text: str) -> tuple[list[ExtractedAnswer[str]], bool]:
    """Return every closed fenced block, with its language as `rule`, and whether the last fence is unclosed.

    As in Markdown, the closing fence is at least as long as the opening one, both may be indented, and the indentation
    of the opening fence is removed from every line.
    """
    blocks: list[ExtractedAnswer[str]] = []
    fence: re.Match[str] | None = None
    lines: list[str] = []
    start = position = 0
    for line in text.splitlines(keepends=True):
        content = line.rstrip("\r\n")
        if fence is None:
            fence = _OPENING_FENCE.fullmatch(content)
            lines, start = [], position + len(line)
        elif len(content.strip()) >= len(fence[2]) and set(content.strip()) == {fence[2][0]}:
            blocks.append(ExtractedAnswer("".join(lines), (start, position), fence[3].lower()))
            fence = None
        else:
            lines.append(line.removeprefix(fence[1]))
        position += len(line)
    return blocks, fence is not None


def fenced_blocks(text: str) -> list[ExtractedAnswer[str]]:
    """Return every closed fenced block, with its language as `rule`."""
    return scan_fences(text)[0]


def last_fenced_block(text: str, names: Collection[str] | None = None) -> Extraction[str]:
    """Return the last fenced block; with `names`, the last one whose language is in `names`.

    An unclosed last fence is `NoAnswer`: the model was cut off while it wrote another answer.
    """
    if len(text) > MAX_CHARACTERS:
        return NoAnswer(f"longer than {MAX_CHARACTERS:,} characters")
    blocks, is_open = scan_fences(text)
    if is_open:
        return NoAnswer("the last fenced block is not closed")
    candidates = [block for block in blocks if names is None or block.rule in names]
    if not candidates:
        return NoAnswer("no fenced block" if names is None else f"no {min(names)} block")
    if not candidates[-1].value.strip():
        return NoAnswer("the last fenced block is empty")
    return candidates[-1]
