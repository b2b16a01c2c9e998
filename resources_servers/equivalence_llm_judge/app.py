"""Equivalence: a judge decides whether the reply says the same thing as the expected answer."""

import secrets
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from nemo_gym import component_search_roots
from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.grading import patterns
from nemo_gym.grading.extraction import last_assistant_text
from nemo_gym.grading.judge_labels import verdict_label
from nemo_gym.grading.result_types import NoAnswer
from nemo_gym.grading.text import normalise_text
from nemo_gym.judge import JudgeError, call_judge
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from resources_servers.equivalence_llm_judge.prompts import (
    FIELDS,
    SYSTEM,
    TEMPLATE,
    fill_prompt,
    placeholders,
)

LONGEST_FOR_REGEX = 20_000
"""Characters at the end of a text that an expression searches: an expression from the data may backtrack."""
LONGEST_FOR_JUDGE = 8000
"""Characters at the end of an answer that the judge reads."""


def check_expression(pattern: str | None) -> str | None:
    if pattern:
        patterns.compile_pattern(pattern)
    return pattern


def last_match(text: str, pattern: str) -> str | None:
    """Return the last match of an expression (its first group if it has one); None without one or in time."""
    try:
        last = patterns.last_match(pattern, text[-LONGEST_FOR_REGEX:])
    except patterns.PatternTooSlow:
        return None
    if last is None:
        return None
    content = last.group(1) if last.re.groups and last.group(1) is not None else last.group()
    return str(content).strip() or None


def has_content(answer: str, question: str) -> bool:
    """Return whether an answer can be judged: it has letters or digits, and is not the question."""
    plain = normalise_text(answer, ignore_punctuation=True)
    return any(character.isalnum() for character in plain) and plain != normalise_text(
        question, ignore_punctuation=True
    )


class EquivalenceConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    judge_model_server: ModelServerRef
    """The model server of the judge; never the one under test unless you name it."""
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming = Field(
        default_factory=lambda: NeMoGymResponseCreateParamsNonStreaming(input=[])
    )
    judge_endpoint: Literal["/v1/responses"] = "/v1/responses"
    judge_system_message: str | None = None
    """Replaces the default message, which explains equality and names the labels."""
    judge_prompt_template: str | None = None
    """Replaces the default; has `{question}`, `{expected_answer}` and `{generated_answer}`, each put between marks."""
    judge_prompt_template_fpath: str | None = None
    """Path of a file with the prompt template."""
    judge_equal_label: str = Field(default="[[A=B]]", min_length=1)
    judge_not_equal_label: str = Field(default="[[A!=B]]", min_length=1)
    question_extract_regex: str | None = None
    """Finds the question in the prompt (default: the last message of the user)."""
    response_extract_regex: str | None = None
    """Finds the answer in the reply (default: the whole last message); the last match wins."""
    use_per_record_regex: bool = True
    """Prefer the row's `template_metadata.output_regex` to `response_extract_regex`."""
    extraction_length_threshold: int | None = Field(default=120, ge=0)
    """Longer expected answers are compared with the whole reply."""
    check_twice_swap: bool = False
    """Ask the judge again with the answers swapped; both verdicts must be equal."""
    reward_if_swap_fails: float = 0.0
    check_full_generation_on_fail: bool = False
    """If the extracted answer is judged different, compare the whole reply."""
    reward_if_full_generation_succeeds: float = 0.5

    _expressions = field_validator("question_extract_regex", "response_extract_regex")(check_expression)

    @model_validator(mode="after")
    def _check_labels_and_template(self) -> Self:
        equal, different = self.judge_equal_label, self.judge_not_equal_label
        if equal in different or different in equal:
            raise ValueError(f"one of the labels {equal!r} and {different!r} is part of the other")
        if self.judge_prompt_template is not None and self.judge_prompt_template_fpath is not None:
            raise ValueError("give judge_prompt_template or judge_prompt_template_fpath, not both")
        return self


class TemplateMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    output_regex: str | None = None

    _expression = field_validator("output_regex")(check_expression)


class EquivalenceRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    expected_answer: str = Field(min_length=1)
    question: str | None = None
    """The question for the judge (default: taken from the prompt)."""
    template_metadata: TemplateMetadata | None = None


class EquivalenceVerifyRequest(EquivalenceRunRequest, BaseVerifyRequest):
    pass


class JudgeEvaluation(BaseModel):
    """One call of the judge and its verdict."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse
    verdict_label: str


class EquivalenceVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answer: str
    extracted_answer: str | None
    """The first compared answer; None if the reply has no answer, which is not the same as a wrong one."""
    unparsed_reason: str | None = None
    judge_evaluations: list[JudgeEvaluation] = []


class EquivalenceServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: EquivalenceConfig
    _template: str = PrivateAttr(default=TEMPLATE)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._template = load_template(self.config)

    async def verify(self, body: EquivalenceVerifyRequest) -> EquivalenceVerifyResponse:
        evaluations: list[JudgeEvaluation] = []
        text = last_assistant_text(body.response)
        whole = "" if isinstance(text, NoAnswer) else text.value.strip()
        answer, reason = (None, text.reason) if isinstance(text, NoAnswer) else self.extract_answer(whole, body)
        question = self.find_question(body)
        if answer is not None and not has_content(answer, question):
            answer, reason = None, "there is no answer in it"
        reward = await self.compare(question, body.expected_answer, answer, evaluations) if answer else 0.0
        tries_whole = self.config.check_full_generation_on_fail and whole != (answer or "")
        if reward == 0.0 and tries_whole and has_content(whole, question):
            full = await self.compare(question, body.expected_answer, whole, evaluations)
            reward = self.config.reward_if_full_generation_succeeds if full == 1.0 else reward
        graded = {
            "extracted_answer": answer,
            "unparsed_reason": reason,
            "judge_evaluations": evaluations,
            "reward": reward,
        }
        return EquivalenceVerifyResponse(**(body.model_dump() | graded))

    def extract_answer(self, text: str, body: EquivalenceVerifyRequest) -> tuple[str | None, str | None]:
        """Return the part of the reply to compare, or None and the reason."""
        own = body.template_metadata.output_regex if body.template_metadata else None
        pattern = own if own and self.config.use_per_record_regex else self.config.response_extract_regex
        longest = self.config.extraction_length_threshold
        if pattern is None or (longest is not None and len(body.expected_answer) > longest):
            return text, None
        answer = last_match(text, pattern)
        return answer, None if answer else "the expression does not match"

    def find_question(self, body: EquivalenceVerifyRequest) -> str:
        """Return the row's `question`, else the last message of the user."""
        question = body.question or last_user_text(body.responses_create_params)
        pattern = self.config.question_extract_regex
        return (last_match(question, pattern) if pattern else None) or question

    async def compare(self, question: str, gold: str, answer: str, evaluations: list[JudgeEvaluation]) -> float:
        """Return 1.0 if the judge calls both answers equal, in both orders with `check_twice_swap`.

        Raises:
            JudgeError: the judge gave no verdict.
        """
        equal = self.config.judge_equal_label
        answer = answer[-LONGEST_FOR_JUDGE:]
        evaluations.append(await self._ask_judge(question, gold, answer))
        if evaluations[-1].verdict_label != equal:
            return 0.0
        if self.config.check_twice_swap:
            evaluations.append(await self._ask_judge(question, answer, gold))
            return 1.0 if evaluations[-1].verdict_label == equal else self.config.reward_if_swap_fails
        return 1.0

    async def _ask_judge(self, question: str, first: str, second: str) -> JudgeEvaluation:
        labels = (self.config.judge_equal_label, self.config.judge_not_equal_label)
        values = dict(zip(FIELDS, (question, first, second), strict=True))
        system = self.config.judge_system_message
        params = self.config.judge_responses_create_params.model_copy(deep=True)
        params.input = [  # type: ignore[assignment]
            NeMoGymEasyInputMessage(
                role="system", content=system or SYSTEM.format(equal=labels[0], different=labels[1])
            ),
            NeMoGymEasyInputMessage(
                role="user", content=fill_prompt(self._template, values, labels, secrets.token_hex(8))
            ),
        ]
        response = await call_judge(
            self.server_client,
            server_name=self.config.judge_model_server.name,
            url_path=self.config.judge_endpoint,
            json=params,
            response_model=NeMoGymResponse,
        )
        label = None if response.incomplete_details else verdict_label(response.output_text, labels)
        if label is None:
            raise JudgeError(f"the judge gave no verdict: {response.output_text[-200:]!r}")
        return JudgeEvaluation(responses_create_params=params, response=response, verdict_label=label)

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


def last_user_text(params: NeMoGymResponseCreateParamsNonStreaming) -> str:
    """Return the text of the user's last message."""
    if isinstance(params.input, str):
        return params.input
    for item in reversed(params.input):
        if getattr(item, "role", None) == "user":
            content: Any = getattr(item, "content", "")
            parts = [] if isinstance(content, str) else [dict(part).get("text", "") for part in content]
            return content if isinstance(content, str) else "\n".join(map(str, parts))
    return ""


def load_template(config: EquivalenceConfig) -> str:
    """Load the judge's prompt template.

    Raises:
        ValueError: the file is missing, or the template lacks a placeholder.
    """
    text = config.judge_prompt_template or TEMPLATE
    if config.judge_prompt_template_fpath is not None:
        paths = [root / config.judge_prompt_template_fpath for root in (Path(), *component_search_roots())]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise ValueError(f"judge_prompt_template_fpath: there is no file {config.judge_prompt_template_fpath}")
        text = path.read_text(encoding="utf-8")
    missing = [field for field in FIELDS if field not in placeholders(text)]
    if missing:
        raise ValueError(f"the judge's prompt has no place for {', '.join(f'{{{field}}}' for field in missing)}")
    return text


async def _verify_with_honest_judge(
    server: EquivalenceServer, body: EquivalenceVerifyRequest
) -> EquivalenceVerifyResponse:
    """Verify with the judge of this folder's audit."""
    from nemo_gym.authoring.audit_server import scripted_judges  # not needed to serve
    from resources_servers.equivalence_llm_judge.audit import judge

    with scripted_judges(["judge"], "equivalence.fixture") as (client, judges):
        judges[0].set_answer(judge)
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
    invoke=_verify_with_honest_judge,
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
LLMJudgeResourcesServer = EquivalenceServer
LLMJudgeResourcesServerConfig = EquivalenceConfig


if __name__ == "__main__":
    EquivalenceServer.run_webserver()
