"""Reasoning Gym: the scorer of a row's dataset grades the answer."""

import importlib.util
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.errors import EnvFailed
from nemo_gym.grading.extraction import find_boxes, last_assistant_text
from nemo_gym.grading.math import is_joint
from nemo_gym.grading.result_types import ExtractedAnswer, Extraction, NoAnswer
from nemo_gym.grading.text import normalise_text
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, headline_metrics
from nemo_gym.workers.pool import WorkerFailure, WorkerPool
from resources_servers.reasoning_gym.names import DATASETS

WORK = "resources_servers.reasoning_gym.scoring:score"
LONGEST_ANSWER = 20_000
"""Largest number of characters; the scorers were not written for more."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


def extract_answer(text: str) -> Extraction[str]:
    """Read the last answer tag, else the first box, else the whole text.

    Tags or boxes joined by "or" and the like are one answer, so that a list of candidates is not right.
    """
    start, tags = None, []
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start, opening = tag.end(), tag.start()
        elif start is not None:
            tags.append(ExtractedAnswer(text[start : tag.start()].strip(), (opening, tag.end()), "answer_tag"))
            start = None
    if start is not None:
        return NoAnswer("the answer tag is not closed")
    boxes, is_unclosed = ([], False) if tags else find_boxes(text)
    if is_unclosed and not boxes:
        return NoAnswer("the box is not closed")
    if tags:
        value, rule = _join_candidates(text, tags[::-1]), "answer_tag"
    else:
        value, rule = (_join_candidates(text, boxes), "first_box") if boxes else (text.strip(), "whole_text")
    if not value:
        return NoAnswer("the answer is empty")
    if len(value) > LONGEST_ANSWER:
        return NoAnswer(f"longer than {LONGEST_ANSWER:,} characters")
    return ExtractedAnswer(value, (0, len(text)), rule)


def _join_candidates(text: str, parts: list[ExtractedAnswer[str]]) -> str:
    """Return the first part, together with those that are joined to it and differ from it."""
    values = [parts[0].value.strip()]
    for part, following in pairwise(parts):
        first, second = sorted((part.span, following.span))
        if not is_joint(text[first[1] : second[0]]):
            break
        values.append(following.value.strip())
    return ", ".join(dict.fromkeys(values))


class ReasoningGymConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    scorer_cpu_seconds: float = Field(default=5.0, gt=0)
    """Largest CPU time of one scorer."""
    scorer_workers: int | None = Field(default=None, gt=0)
    """Number of worker processes (default: one for each core)."""


class TaskMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    source_dataset: str

    @field_validator("source_dataset")
    @classmethod
    def _check_dataset(cls, value: str) -> str:
        if value not in DATASETS:
            raise ValueError(f"{value!r} is not a dataset of reasoning-gym")
        return value


class ReasoningGymRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    question: str
    answer: str | None = None
    """The answer of the task; some tasks have none and are checked by their rules."""
    metadata: TaskMetadata


class ReasoningGymVerifyRequest(ReasoningGymRunRequest, BaseVerifyRequest):
    pass


class ReasoningGymVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    task_name: str
    score: float
    extracted_answer: str | None
    extraction_rule: str | None = None
    unscored_reason: str | None = None
    """Reason why the scorer was not called or gave no score."""


class ReasoningGymServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: ReasoningGymConfig
    _scorers: WorkerPool = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._scorers = WorkerPool(
            WORK,
            size=self.config.scorer_workers,
            cpu_seconds=self.config.scorer_cpu_seconds,
            memory_bytes=4 << 30,  # numpy maps much more than it uses
        )

    async def verify(self, body: ReasoningGymVerifyRequest) -> ReasoningGymVerifyResponse:
        message = last_assistant_text(body.response)
        answer = message if isinstance(message, NoAnswer) else extract_answer(message.value)
        if isinstance(answer, NoAnswer):
            verdict: dict[str, Any] = {"score": 0.0, "extracted_answer": None, "unscored_reason": answer.reason}
        else:
            score, reason = await self.score(answer.value, body)
            verdict = {"score": score, "extracted_answer": answer.value, "unscored_reason": reason}
            verdict["extraction_rule"] = answer.rule
        verdict |= {"reward": verdict["score"], "task_name": body.metadata.source_dataset}
        return ReasoningGymVerifyResponse(**(body.model_dump() | verdict))

    async def score(self, answer: str, body: ReasoningGymVerifyRequest) -> tuple[float, str | None]:
        """Return the score of the task's scorer, and a reason if it was not called or did not finish.

        Raises:
            EnvFailed: the package is missing, or the scorer also fails on the answer of the row.
        """
        if normalise_text(answer) == normalise_text(body.question):
            return 0.0, "the answer is the question"
        if importlib.util.find_spec("reasoning_gym") is None:
            raise EnvFailed("reasoning-gym is not installed", fix="pip install 'nemo-gym[environments]'")
        entry = {"question": body.question, "answer": body.answer, "metadata": body.metadata.model_dump()}
        name = body.metadata.source_dataset
        result = await self._scorers.run_async({"dataset": name, "answer": answer, "entry": entry})
        if isinstance(result, WorkerFailure):
            if result.kind == "crash":
                raise EnvFailed(f"the scorer of {name} failed: {result.reason}", where=self.config.name)
            return 0.0, f"the scorer did not come to an end: {result.reason}"
        return float(result.value["score"]), result.value.get("rejected")

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0] | compute_subset_metrics(tasks, "task_name")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=cache(lambda: offline_server(ReasoningGymServer, scorer_workers=1)),  # one pool for all cases
    request_model=ReasoningGymVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
ReasoningGymResourcesServer = ReasoningGymServer
ReasoningGymResourcesServerConfig = ReasoningGymConfig


if __name__ == "__main__":
    ReasoningGymServer.run_webserver()
