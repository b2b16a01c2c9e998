"""Continue a conversation from the exact tokens of its earlier turns.

A chat template writes earlier answers from their text, and the result is often not what the model sampled: a tool call
has other spaces, a text has other tokens. `splice` keeps the sampled tokens and takes from the template only what
follows them. It compares everything else, so that a conversation that was changed is not continued with old tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nemo_gym.token_id_capture.lineage import TurnSpan, is_turn_closed

Json = dict[str, Any]
TokenIds = list[int]


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier answer of the model, with the prompt it answered."""

    prompt: TokenIds
    generated: TokenIds
    is_closed: bool
    """The last token ends the turn, even if it is another one than the template writes (`<|eom_id|>` of Llama)."""

    @classmethod
    def of(cls, message: Json) -> "Turn":
        """Return the turn of an assistant message with token fields."""
        return cls(message["prompt_token_ids"], message["generation_token_ids"], is_turn_closed(message))

    @property
    def token_ids(self) -> TokenIds:
        return self.prompt + self.generated

    @property
    def span(self) -> TurnSpan:
        return TurnSpan(len(self.prompt), len(self.prompt) + len(self.generated), self.is_closed)


@dataclass(frozen=True, slots=True)
class TemplateEnds:
    """The tokens with which a chat template ends an assistant's turn and begins the next answer."""

    turn_end: int
    answer_start: TokenIds

    @classmethod
    def of(cls, prompt: TokenIds, start: TokenIds, answers: tuple[TokenIds, TokenIds]) -> "TemplateEnds | None":
        """Compare rendered probes: a prompt without and with the start of an answer, and two different answers.

        None if the template writes nothing after an answer, or not the same.
        """
        first, second = answers
        same = 0
        while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
            same += 1
        if not same or same == min(len(first), len(second)):
            return None
        answer_start = start[len(prompt) :] if start[: len(prompt)] == prompt else []
        return cls(first[-same], answer_start)


class CannotSplice(Exception):
    """The conversation cannot be continued from the tokens of its last turn; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt up to the end of a turn (exclusive); `fixed_end` is where generated tokens may begin."""

    start: int
    end: int
    fixed_end: int


@dataclass(frozen=True, slots=True)
class SplicedPrompt:
    """A prompt that continues earlier turns, and the position in it of each segment of the rendered prompt."""

    token_ids: TokenIds
    moved: list[tuple[int, int]]
    """Starts of segments in the rendered prompt and in `token_ids`."""

    def position(self, rendered: int) -> int:
        """Return the position in `token_ids` of a position in the rendered prompt."""
        start, moved_to = next(pair for pair in reversed(self.moved) if pair[0] <= rendered)
        return moved_to + rendered - start


def continues(prompt: TokenIds, turn: Turn) -> bool:
    """Return whether a prompt starts with the tokens of a turn."""
    split, end = len(turn.prompt), len(turn.prompt) + len(turn.generated)
    return prompt[:split] == turn.prompt and prompt[split:end] == turn.generated


def splice(rendered: TokenIds, turns: list[Turn], ends: TemplateEnds) -> SplicedPrompt:
    """Return `rendered` with the tokens of the last turn, which contain those of the turns that it continues.

    Raises:
        CannotSplice: the conversation was changed, or the template writes it so that the parts cannot be compared.
    """
    tokens = turns[-1].token_ids
    return splice_tokens(rendered, tokens, [turn.span for turn in turns if continues(tokens, turn)], ends)


def splice_tokens(rendered: TokenIds, tokens: TokenIds, turns: Sequence[TurnSpan], ends: TemplateEnds) -> SplicedPrompt:
    """Return `rendered` with `tokens` in place of what the template writes for them.

    `tokens` is the conversation up to its last answer; the model generated them in `turns`, oldest first.

    Raises:
        CannotSplice: the conversation was changed, or the template writes it so that the parts cannot be compared.
    """
    own = _segments(tokens, turns, ends)
    theirs = _split(rendered, 0, len(rendered), ends.turn_end)
    if len(theirs) <= len(own):
        raise CannotSplice("the chat template writes fewer turns than the model has seen")
    for segment, (start, end) in zip(own, theirs, strict=False):
        size = segment.fixed_end - segment.start
        is_whole = segment.fixed_end == segment.end
        if tokens[segment.start : segment.fixed_end] != rendered[start : end if is_whole else start + size]:
            raise CannotSplice("the conversation before the last answer was changed, or its template writes it anew")
    cut = theirs[len(own) - 1][1]  # the position of the token that ends the last turn
    kept = cut + 1 if turns[-1].is_closed or tokens[-1] == ends.turn_end else cut
    moved = [(start, segment.start) for segment, (start, _) in zip(own, theirs, strict=False)]
    return SplicedPrompt(tokens + rendered[kept:], [*moved, (kept, len(tokens))])


def _segments(tokens: TokenIds, turns: Sequence[TurnSpan], ends: TemplateEnds) -> list[Segment]:
    """Divide a prompt at the ends of turns. A generated answer is in one segment, whatever tokens it consists of."""
    segments: list[Segment] = []
    start = 0
    for turn in turns:
        after = turn.end
        *whole, (head, _) = _split(tokens, start, turn.start, ends.turn_end)
        segments += [Segment(begin, end, end) for begin, end in whole]
        if not turn.is_closed and tokens[after - 1] != ends.turn_end:
            after += 1  # the template writes the end of the turn
        segments.append(Segment(head, after - 1, max(head, turn.start - len(ends.answer_start))))
        start = after
    return segments


def _split(tokens: TokenIds, start: int, stop: int, turn_end: int) -> list[tuple[int, int]]:
    """Return start and end of the parts of `tokens[start:stop]` between tokens that end a turn; the last is open."""
    parts: list[tuple[int, int]] = []
    while True:
        try:
            end = tokens.index(turn_end, start, stop)
        except ValueError:
            return [*parts, (start, stop)]
        parts.append((start, end))
        start = end + 1
