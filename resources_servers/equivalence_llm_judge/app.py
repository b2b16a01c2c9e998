"""Equivalence: a judge decides whether the reply says the same thing as the expected answer."""

import re
import secrets
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.config_types import ModelServerRef
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.last_text import last_assistant_text
from nemo_gym.grading.normalise import plain_text
from nemo_gym.grading.verdict import Unparsed
from nemo_gym.judge import JudgeError, call_judge
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from resources_servers.equivalence_llm_judge.prompts import (
    FIELDS,
    SYSTEM,
    TEMPLATE,
    placeholders,
    prompt,
    verdict_label,
)

LONGEST_FOR_REGEX = 20_000
"""Characters, from the end, that an expression is tried on: one from the data may be one that backtracks."""
LONGEST_FOR_JUDGE = 8000
"""Characters of an answer, from the end, that a judge is shown."""


def checked_expression(pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except re.error as problem:
        raise ValueError(f"{pattern!r} is not a regular expression: {problem}") from None
    return pattern


def extracted(text: str, pattern: str) -> str | None:
    """The last match of an expression: its first group, or all of it; None if there is none."""
    matches = list(re.finditer(pattern, text[-LONGEST_FOR_REGEX:]))
    if not matches:
        return None
    last = matches[-1]
    said = last.group(1) if last.re.groups and last.group(1) is not None else last.group()
    return str(said).strip() or None


def says_something(answer: str, question: str) -> bool:
    """Whether there is anything to judge: letters or digits, and not just the question again."""
    plain = plain_text(answer, ignore_punctuation=True)
    return any(character.isalnum() for character in plain) and plain != plain_text(question, ignore_punctuation=True)


class EquivalenceConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    judge_model_server: ModelServerRef
    """A model server; never silently the one under test."""
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming = Field(
        default_factory=lambda: NeMoGymResponseCreateParamsNonStreaming(input=[])
    )
    judge_endpoint: Literal["/v1/responses"] = "/v1/responses"
    judge_system_message: str | None = None
    """In place of our own; says what counts as the same and names the labels."""
    judge_prompt_template: str | None = None
    """In place of our own; has `{question}`, `{expected_answer}` and `{generated_answer}`, each given between marks."""
    judge_prompt_template_fpath: str | None = None
    """The same as a file."""
    judge_equal_label: str = Field(default="[[A=B]]", min_length=1)
    judge_not_equal_label: str = Field(default="[[A!=B]]", min_length=1)
    question_extract_regex: str | None = None
    """What of the prompt is the question (default: the last message of the user)."""
    response_extract_regex: str | None = None
    """What of the reply is the answer (default: all of its last message); the last match wins."""
    use_per_record_regex: bool = True
    """A row's own `template_metadata.output_regex` wins over `response_extract_regex`."""
    extraction_length_threshold: int | None = Field(default=120, ge=0)
    """Expected answers of more characters are compared with the whole reply, nothing is extracted."""
    check_twice_swap: bool = False
    """Ask again in the other order; both must say equal."""
    reward_if_swap_fails: float = 0.0
    check_full_generation_on_fail: bool = False
    """Where the extracted answer is judged different, try the whole reply."""
    reward_if_full_generation_succeeds: float = 0.5

    _expressions = field_validator("question_extract_regex", "response_extract_regex")(checked_expression)

    @model_validator(mode="after")
    def _labels_differ(self) -> Self:
        equal, different = self.judge_equal_label, self.judge_not_equal_label
        if equal in different or different in equal:
            raise ValueError(f"one of the labels {equal!r} and {different!r} is part of the other")
        if self.judge_prompt_template is not None and self.judge_prompt_template_fpath is not None:
            raise ValueError("give judge_prompt_template or judge_prompt_template_fpath, not both")
        return self


class TemplateMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    output_regex: str | None = None

    _expression = field_validator("output_regex")(checked_expression)


class EquivalenceRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    expected_answer: str = Field(min_length=1)
    question: str | None = None
    """What was asked (default: taken from the prompt)."""
    template_metadata: TemplateMetadata | None = None


class EquivalenceVerifyRequest(EquivalenceRunRequest, BaseVerifyRequest):
    pass


class JudgeEvaluation(BaseModel):
    """One question to the judge and what it said."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse
    verdict_label: str


class EquivalenceVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answer: str
    extracted_answer: str | None
    """What was compared first; None when there was nothing to compare, which is not the same as a wrong answer."""
    unparsed_reason: str | None = None
    judge_evaluations: list[JudgeEvaluation] = []


class EquivalenceServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: EquivalenceConfig
    _template: str = PrivateAttr(default=TEMPLATE)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._template = _template(self.config)

    async def verify(self, body: EquivalenceVerifyRequest) -> EquivalenceVerifyResponse:
        evaluations: list[JudgeEvaluation] = []
        said = last_assistant_text(body.response)
        whole = "" if isinstance(said, Unparsed) else said.value.strip()
        answer, reason = (None, said.reason) if isinstance(said, Unparsed) else self.answer_in(whole, body)
        question = self.question_of(body)
        if answer is not None and not says_something(answer, question):
            answer, reason = None, "there is no answer in it"
        reward = await self.compared(question, body.expected_answer, answer, evaluations) if answer else 0.0
        tries_whole = self.config.check_full_generation_on_fail and whole != (answer or "")
        if reward == 0.0 and tries_whole and says_something(whole, question):
            full = await self.compared(question, body.expected_answer, whole, evaluations)
            reward = self.config.reward_if_full_generation_succeeds if full == 1.0 else reward
        graded = {
            "extracted_answer": answer,
            "unparsed_reason": reason,
            "judge_evaluations": evaluations,
            "reward": reward,
        }
        return EquivalenceVerifyResponse(**(body.model_dump() | graded))

    def answer_in(self, text: str, body: EquivalenceVerifyRequest) -> tuple[str | None, str | None]:
        """(what of the reply is compared, why nothing is)."""
        own = body.template_metadata.output_regex if body.template_metadata else None
        pattern = own if own and self.config.use_per_record_regex else self.config.response_extract_regex
        longest = self.config.extraction_length_threshold
        if pattern is None or (longest is not None and len(body.expected_answer) > longest):
            return text, None
        found = extracted(text, pattern)
        return found, None if found else "the expression does not match"

    def question_of(self, body: EquivalenceVerifyRequest) -> str:
        """What was asked: the row's own word for it, else the last message of the user."""
        asked = body.question or last_user_text(body.responses_create_params)
        pattern = self.config.question_extract_regex
        return (extracted(asked, pattern) if pattern else None) or asked

    async def compared(self, question: str, gold: str, answer: str, evaluations: list[JudgeEvaluation]) -> float:
        """1.0 if the judge calls both the same, in both orders if that is asked for.

        Raises:
            JudgeError: there is no verdict, so there is no reward.
        """
        equal = self.config.judge_equal_label
        shown = answer[-LONGEST_FOR_JUDGE:]
        evaluations.append(await self._ask(question, gold, shown))
        if evaluations[-1].verdict_label != equal:
            return 0.0
        if self.config.check_twice_swap:
            evaluations.append(await self._ask(question, shown, gold))
            return 1.0 if evaluations[-1].verdict_label == equal else self.config.reward_if_swap_fails
        return 1.0

    async def _ask(self, question: str, first: str, second: str) -> JudgeEvaluation:
        labels = (self.config.judge_equal_label, self.config.judge_not_equal_label)
        values = dict(zip(FIELDS, (question, first, second), strict=True))
        system = self.config.judge_system_message
        params = self.config.judge_responses_create_params.model_copy(deep=True)
        params.input = [  # type: ignore[assignment]
            NeMoGymEasyInputMessage(
                role="system", content=system or SYSTEM.format(equal=labels[0], different=labels[1])
            ),
            NeMoGymEasyInputMessage(role="user", content=prompt(self._template, values, labels, secrets.token_hex(8))),
        ]
        response = await call_judge(
            self.server_client,
            server_name=self.config.judge_model_server.name,
            url_path=self.config.judge_endpoint,
            json=params,
            response_model=NeMoGymResponse,
        )
        label = verdict_label(response.output_text, labels)
        if label is None:
            raise JudgeError(f"the judge gave no verdict: {response.output_text[-200:]!r}")
        return JudgeEvaluation(responses_create_params=params, response=response, verdict_label=label)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


def last_user_text(params: NeMoGymResponseCreateParamsNonStreaming) -> str:
    """The text of the last thing the user said."""
    if isinstance(params.input, str):
        return params.input
    for item in reversed(params.input):
        if getattr(item, "role", None) == "user":
            content: Any = getattr(item, "content", "")
            parts = [] if isinstance(content, str) else [dict(part).get("text", "") for part in content]
            return content if isinstance(content, str) else "\n".join(map(str, parts))
    return ""


def _template(config: EquivalenceConfig) -> str:
    """The judge's prompt as configured.

    Raises:
        ValueError: there is no such file, or a place is missing.
    """
    text = config.judge_prompt_template or TEMPLATE
    if config.judge_prompt_template_fpath is not None:
        places = [root / config.judge_prompt_template_fpath for root in (Path(), *component_search_roots())]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise ValueError(f"judge_prompt_template_fpath: there is no file {config.judge_prompt_template_fpath}")
        text = found.read_text(encoding="utf-8")
    missing = [field for field in FIELDS if field not in placeholders(text)]
    if missing:
        raise ValueError(f"the judge's prompt has no place for {', '.join(f'{{{field}}}' for field in missing)}")
    return text


async def _verified(server: EquivalenceServer, body: EquivalenceVerifyRequest) -> EquivalenceVerifyResponse:
    """A verdict with the honest judge of this folder's audit."""
    from nemo_gym.environment.audit_server import scripted_judges  # nothing a serving process needs
    from resources_servers.equivalence_llm_judge.audit import judge

    with scripted_judges(["judge"], "equivalence.fixture") as (client, judges):
        judges[0]._answer = judge
        server.server_client = client
        return await server.verify(body)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(
        EquivalenceServer,
        judge_model_server={"type": "responses_api_models", "name": "judge"},
        response_extract_regex=r"(?im)^answer: *(\S.*)$",
        check_twice_swap=True,
    ),
    request_model=EquivalenceVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
    invoke=_verified,
)


if __name__ == "__main__":
    EquivalenceServer.run_webserver()
