"""Multiple choice: the reply is right when it names the expected option in the form of the grading mode."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.grading.choices import NO_OPTION, extract_boxed_choice, extract_choice, parse_option
from nemo_gym.grading.extraction import last_assistant_text, last_boxed
from nemo_gym.grading.patterns import PatternTooSlow, compile_pattern, last_match
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer
from nemo_gym.grading.text import normalise_text
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics

GradingMode = Literal[
    "strict_single_letter_boxed",
    "lenient_boxed",
    "lenient_answer_colon",
    "lenient_answer_colon_md",
    "any_form",
]
LONGEST_FOR_REGEX = 20_000
"""Characters at the end of a reply that an expression from the data is tried on: the expression may backtrack."""

_ANSWER = re.compile(r"(?<![^\W_])answer\s{0,3}:", re.IGNORECASE)
_ANSWER_MD = re.compile(r"(?<![^\W_])answer[*_`]{0,3}\s{0,3}:[*_`]{0,3}", re.IGNORECASE)

Texts = Mapping[str, str]


def read_strict_box(text: str, texts: Texts) -> Extraction[str]:
    r"""Read the letter in the last `\boxed{}`: bare, in a text command, or as the label of its text."""
    return extract_boxed_choice(text, list(texts))


def read_lenient_box(text: str, texts: Texts) -> Extraction[str]:
    """Read as `read_strict_box` does; else return the only option whose text is in the box."""
    option = extract_boxed_choice(text, list(texts), texts)
    box = last_boxed(text)
    if isinstance(option, ExtractedAnswer) or isinstance(box, NoAnswer) or option.reason != NO_OPTION:
        return option
    return _at_match(box, _option_by_text(box.value, texts))


def _option_by_text(answer: str, texts: Texts) -> str | NoAnswer:
    words = f" {normalise_text(answer, ignore_punctuation=True)} "
    keys = [
        key for key, text in texts.items() if text and f" {normalise_text(text, ignore_punctuation=True)} " in words
    ]
    return keys[0] if len(keys) == 1 else NoAnswer("no option, or more than one, is named by its text")


def read_answer_label(text: str, texts: Texts, label: re.Pattern[str] = _ANSWER) -> Extraction[str]:
    """Read the option after the last "answer:", as letter or text, on the same line or the next."""
    label_ends = [match.end() for match in label.finditer(text)]
    if not label_ends:
        return NoAnswer("there is no 'answer:'")
    start = label_ends[-1]
    while start < len(text) and text[start].isspace():
        start += 1
    line = text[start:].split("\n", 1)[0][:300]
    return _at_match(
        ExtractedAnswer(line, (start, start + len(line)), "answer_colon"), parse_option(line, list(texts), texts)
    )


def read_by_regex(text: str, texts: Texts, patterns: list[str]) -> Extraction[str]:
    """Read the last match of the first expression that matches: its first group or all of it, as letter or text."""
    tail = text[-LONGEST_FOR_REGEX:]
    for pattern in patterns:
        try:
            last = last_match(pattern, tail)
        except PatternTooSlow:
            return NoAnswer("an expression of the row takes too long")
        if last is not None:
            answer = last.group(1) if last.re.groups and last.group(1) is not None else last.group()
            start, end = (offset + len(text) - len(tail) for offset in last.span())
            return _at_match(
                ExtractedAnswer(answer, (start, end), "output_regex"), parse_option(answer, list(texts), texts)
            )
    return NoAnswer("no expression of the row matches")


def _at_match(match: ExtractedAnswer[str], key: str | NoAnswer) -> Extraction[str]:
    """Return the option's key with the position and rule of the text it was read from."""
    return key if isinstance(key, NoAnswer) else ExtractedAnswer(key, match.span, match.rule)


def read_any_form(text: str, texts: Texts) -> Extraction[str]:
    """Read every form that `nemo_gym.grading.choices` knows."""
    return extract_choice(text, list(texts), texts)


MODES: dict[GradingMode, Callable[[str, Texts], Extraction[str]]] = {
    "strict_single_letter_boxed": read_strict_box,
    "lenient_boxed": read_lenient_box,
    "lenient_answer_colon": read_answer_label,
    "lenient_answer_colon_md": lambda text, texts: read_answer_label(text, texts, _ANSWER_MD),
    "any_form": read_any_form,
}


class MCQAResourcesServerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    grading_mode: GradingMode | None = None
    """Grading mode of every row; wins over the mode of the row."""


class TemplateMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    output_regex: str | list[str] | None = None

    @field_validator("output_regex")
    @classmethod
    def _check_patterns(cls, value: str | list[str] | None) -> str | list[str] | None:
        for pattern in [value] if isinstance(value, str) else value or []:
            compile_pattern(pattern)
        return value

    @property
    def patterns(self) -> list[str]:
        return [self.output_regex] if isinstance(self.output_regex, str) else self.output_regex or []


class MCQARunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    options: list[str | dict[str, str]] = Field(min_length=2)
    """One-letter keys, alone or each with its text: `["A", "B"]` or `[{"A": "Paris"}, {"B": "London"}]`."""
    expected_answer: str
    """The key of the right option."""
    grading_mode: GradingMode = "strict_single_letter_boxed"
    template_metadata: TemplateMetadata | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The text of each option by its key; empty for options without text."""
        pairs = [(o, "") if isinstance(o, str) else next(iter(o.items())) for o in self.options]
        return {key.strip().upper(): text for key, text in pairs}

    @model_validator(mode="after")
    def _check_answer_is_an_option(self) -> "MCQARunRequest":
        if any(isinstance(option, dict) and len(option) != 1 for option in self.options):
            raise ValueError("each of `options` must have exactly one key")
        keys = self.texts
        if len(keys) != len(self.options) or any(len(key) != 1 for key in keys):
            raise ValueError("the keys of `options` must be different single characters")
        if self.expected_answer.strip().upper() not in keys:
            raise ValueError(f"`expected_answer` {self.expected_answer!r} is not one of {', '.join(keys)}")
        return self


class MCQAVerifyRequest(MCQARunRequest, BaseVerifyRequest):
    pass


class MCQAVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answer: str
    extracted_answer: str | None
    """The option that the reply names; None if it names none, which is not the same as a wrong one."""
    extraction_rule: str | None = None
    unparsed_reason: str | None = None


class MCQAResourcesServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: MCQAResourcesServerConfig

    async def verify(self, body: MCQAVerifyRequest) -> MCQAVerifyResponse:
        option = self.read_option(body)
        if isinstance(option, NoAnswer):
            verdict: dict[str, Any] = {"extracted_answer": None, "unparsed_reason": option.reason, "reward": 0.0}
        else:
            is_right = option.value == body.expected_answer.strip().upper()
            verdict = {"extracted_answer": option.value, "extraction_rule": option.rule, "reward": float(is_right)}
        return MCQAVerifyResponse(**(body.model_dump() | verdict))

    def read_option(self, body: MCQAVerifyRequest) -> Extraction[str]:
        """Read the option that the reply names; the row's own expressions are tried first."""
        message = last_assistant_text(body.response)
        if isinstance(message, NoAnswer):
            return message
        patterns = body.template_metadata.patterns if body.template_metadata else []
        if patterns:
            option = read_by_regex(message.value, body.texts, patterns)
            if isinstance(option, ExtractedAnswer):
                return option
        return MODES[self.config.grading_mode or body.grading_mode](message.value, body.texts)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics, patterns=("pass@{k}", "majority@{k}"))


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MCQAResourcesServer),
    request_model=MCQAVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MCQAResourcesServer.run_webserver()
