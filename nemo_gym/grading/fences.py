"""Fenced code blocks, read line by line as Markdown does."""

import re
from collections.abc import Collection

from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed

LONGEST = 1 << 20
"""Characters that are read at most."""

_OPENING = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`\n]*")


def blocks(text: str) -> tuple[list[Extracted[str]], bool]:
    """Every closed block in order, with the name behind its fence as rule, and whether one is left open at the end.

    The closing fence is at least as long as the opening one and may be indented; the indentation of the opening
    fence is taken off every line, so a block inside a list reads as it was meant.
    """
    found: list[Extracted[str]] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = place = 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        if opened is None:
            opened = _OPENING.fullmatch(bare)
            lines, start = [], place + len(line)
        elif _closes(bare, opened[2]):
            found.append(Extracted("".join(lines), (start, place), opened[3].lower()))
            opened = None
        else:
            lines.append(_outdented(line, opened[1]))
        place += len(line)
    return found, opened is not None


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and set(mark) == {fence[0]}


def _outdented(line: str, indent: str) -> str:
    return line.removeprefix(indent) if indent else line


def last_block(text: str, names: Collection[str] | None = None) -> Extraction[str]:
    """The last block, or the last one with one of `names`.

    A fence that is never closed hides what came before it: the model was cut off while it wrote another answer.
    """
    if len(text) > LONGEST:
        return Unparsed(f"longer than {LONGEST:,} characters")
    found, is_open = blocks(text)
    if is_open:
        return Unparsed("the last fenced block is not closed")
    wanted = [block for block in found if names is None or block.rule in names]
    if not wanted:
        return Unparsed("there is no fenced block" if names is None else f"there is no {min(names)} block")
    if not wanted[-1].value.strip():
        return Unparsed("the last fenced block is empty")
    return wanted[-1]
