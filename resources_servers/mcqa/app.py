"""Multiple choice: the reply is right when it names the expected option in the agreed form."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.boxed import last_boxed
from nemo_gym.grading.choices import NO_OPTION, boxed_choice, choice, option_in
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.normalise import plain_text
from nemo_gym.grading.verdict import Extracted, Extraction, Unparsed
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics

GradingMode = Literal[
    "strict_single_letter_boxed",
    "lenient_boxed",
    "lenient_answer_colon",
    "lenient_answer_colon_md",
    "any_form",
]
LONGEST_FOR_REGEX = 20_000
"""Characters, from the end, that an expression from the data is tried on: it may be one that backtracks."""

_ANSWER = re.compile(r"(?<![^\W_])answer\s{0,3}:", re.IGNORECASE)
_ANSWER_MD = re.compile(r"(?<![^\W_])answer[*_`]{0,3}\s{0,3}:[*_`]{0,3}", re.IGNORECASE)

Texts = Mapping[str, str]


def strict_boxed(text: str, texts: Texts) -> Extraction[str]:
    r"""The letter in the last `\boxed{}`: bare, in a text command, or as the label of its text."""
    return boxed_choice(text, list(texts))


def lenient_boxed(text: str, texts: Texts) -> Extraction[str]:
    """`strict_boxed`, else the only option whose text stands in the box."""
    found = boxed_choice(text, list(texts), texts)
    box = last_boxed(text)
    if isinstance(found, Extracted) or isinstance(box, Unparsed) or found.reason != NO_OPTION:
        return found
    return _named(box, _only_text(box.value, texts))


def _only_text(said: str, texts: Texts) -> str | Unparsed:
    words = f" {plain_text(said, ignore_punctuation=True)} "
    named = [key for key, text in texts.items() if text and f" {plain_text(text, ignore_punctuation=True)} " in words]
    return named[0] if len(named) == 1 else Unparsed("no option, or more than one, is named by its text")


def answer_colon(text: str, texts: Texts, label: re.Pattern[str] = _ANSWER) -> Extraction[str]:
    """The option behind the last "answer:", as letter or text, on the same line or the next."""
    labels = [found.end() for found in label.finditer(text)]
    if not labels:
        return Unparsed("there is no 'answer:'")
    start = labels[-1]
    while start < len(text) and text[start].isspace():
        start += 1
    line = text[start:].split("\n", 1)[0][:300]
    return _named(Extracted(line, (start, start + len(line)), "answer_colon"), option_in(line, list(texts), texts))


def by_regex(text: str, texts: Texts, patterns: list[str]) -> Extraction[str]:
    """The last match of the first expression that matches: its first group, or all of it, as letter or option text."""
    tail = text[-LONGEST_FOR_REGEX:]
    for pattern in patterns:
        matches = list(_compiled(pattern).finditer(tail))
        if matches:
            last = matches[-1]
            said = last.group(1) if last.re.groups and last.group(1) is not None else last.group()
            start, end = (place + len(text) - len(tail) for place in last.span())
            return _named(Extracted(said, (start, end), "output_regex"), option_in(said, list(texts), texts))
    return Unparsed("no expression of the row matches")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _named(where: Extracted[str], named: str | Unparsed) -> Extraction[str]:
    return named if isinstance(named, Unparsed) else Extracted(named, where.span, where.rule)


def any_form(text: str, texts: Texts) -> Extraction[str]:
    """Whatever `nemo_gym.grading.choices` reads."""
    return choice(text, list(texts), texts)


MODES: dict[GradingMode, Callable[[str, Texts], Extraction[str]]] = {
    "strict_single_letter_boxed": strict_boxed,
    "lenient_boxed": lenient_boxed,
    "lenient_answer_colon": answer_colon,
    "lenient_answer_colon_md": lambda text, texts: answer_colon(text, texts, _ANSWER_MD),
    "any_form": any_form,
}


class MCQAResourcesServerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    grading_mode: GradingMode | None = None
    """For every row, whatever it says itself."""


class TemplateMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    output_regex: str | list[str] | None = None

    @field_validator("output_regex")
    @classmethod
    def _compiles(cls, value: str | list[str] | None) -> str | list[str] | None:
        for pattern in [value] if isinstance(value, str) else value or []:
            try:
                re.compile(pattern)
            except re.error as problem:
                raise ValueError(f"{pattern!r} is not a regular expression: {problem}") from None
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
        """The text of each option by its key; empty where only keys are given."""
        pairs = [(o, "") if isinstance(o, str) else next(iter(o.items())) for o in self.options]
        return {key.strip().upper(): text for key, text in pairs}

    @model_validator(mode="after")
    def _fits_together(self) -> "MCQARunRequest":
        if any(isinstance(option, dict) and len(option) != 1 for option in self.options):
            raise ValueError("each of `options` has one key")
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
    """The option that was read; None when there is none, which is not the same as a wrong one."""
    extraction_rule: str | None = None
    unparsed_reason: str | None = None


class MCQAResourcesServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: MCQAResourcesServerConfig

    async def verify(self, body: MCQAVerifyRequest) -> MCQAVerifyResponse:
        found = self.read(body)
        if isinstance(found, Unparsed):
            graded: dict[str, Any] = {"extracted_answer": None, "unparsed_reason": found.reason, "reward": 0.0}
        else:
            right = found.value == body.expected_answer.strip().upper()
            graded = {"extracted_answer": found.value, "extraction_rule": found.rule, "reward": float(right)}
        return MCQAVerifyResponse(**(body.model_dump() | graded))

    def read(self, body: MCQAVerifyRequest) -> Extraction[str]:
        """The option the reply names. The row's own expressions are tried first."""
        said = last_assistant_text(body.response)
        if isinstance(said, Unparsed):
            return said
        patterns = body.template_metadata.patterns if body.template_metadata else []
        if patterns:
            found = by_regex(said.value, body.texts, patterns)
            if isinstance(found, Extracted):
                return found
        return MODES[self.config.grading_mode or body.grading_mode](said.value, body.texts)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}") | highest_k_metrics(agent_metrics, "majority@{k}")


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MCQAResourcesServer),
    request_model=MCQAVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MCQAResourcesServer.run_webserver()
