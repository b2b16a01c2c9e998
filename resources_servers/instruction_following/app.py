"""Instruction following: the reply is right when it follows every instruction that can be checked by looking at it."""

import asyncio
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.authoring.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.grading.extraction import last_assistant_text
from nemo_gym.grading.language import check_langdetect
from nemo_gym.grading.verdict import NoAnswer
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from resources_servers.instruction_following.checking import BY_LANGUAGE, InstructionResult, checked_all
from resources_servers.instruction_following.text import words

GradingMode = Literal["binary", "fraction"]
COPYING = ("copy:", "new:copy")
"""Instructions whose right answer is text of the question."""
SHORTEST_ECHO = 5
FEWEST_NEW = 2
"""Words: of a question that is not to be repeated alone, and of what has to stand beside it."""


class InstructionFollowingConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    grading_mode: GradingMode | None = None
    """For every row, whatever it says itself."""


class Instructions(BaseModel):
    """What the reply is checked for."""

    model_config = ConfigDict(extra="allow")

    instruction_id_list: list[str] = Field(min_length=1)
    """Ids such as `punctuation:no_comma`. One that is not known counts as not followed."""
    kwargs: list[dict[str, Any] | None]
    """The arguments of each, in the same order. Nulls are left out."""
    grading_mode: GradingMode | None = None

    @model_validator(mode="after")
    def _one_for_each(self) -> "Instructions":
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError(
                f"`kwargs` has {len(self.kwargs)} entries for {len(self.instruction_id_list)} in `instruction_id_list`"
            )
        return self


class InstructionFollowingRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    verifier_metadata: Instructions
    grading_mode: GradingMode | None = None
    """`binary` (the default): all or nothing. `fraction`: the part that is followed."""

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, row: Any) -> Any:
        """Published rows have the list and the arguments at the top."""
        if isinstance(row, dict) and "verifier_metadata" not in row and "instruction_id_list" in row:
            return {
                **row,
                "verifier_metadata": {key: row[key] for key in ("instruction_id_list", "kwargs") if key in row},
            }
        return row


class InstructionFollowingVerifyRequest(InstructionFollowingRunRequest, BaseVerifyRequest):
    pass


class InstructionFollowingVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    follow_all_instructions: bool
    follow_instruction_list: list[bool]
    """In the order of `instruction_id_list`."""
    instruction_results: list[InstructionResult]
    unparsed_reason: str | None = None
    """Why there is no text to check at all."""


class InstructionFollowingServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: InstructionFollowingConfig

    def setup_webserver(self) -> FastAPI:
        check_langdetect(self.config.name)
        return super().setup_webserver()

    async def verify(self, body: InstructionFollowingVerifyRequest) -> InstructionFollowingVerifyResponse:
        asked = body.verifier_metadata
        text = answer_text(body)
        said = "" if isinstance(text, NoAnswer) else text
        if BY_LANGUAGE.isdisjoint(asked.instruction_id_list):
            results = checked_all(asked.instruction_id_list, asked.kwargs, said)
        else:
            results = await asyncio.to_thread(checked_all, asked.instruction_id_list, asked.kwargs, said)
        followed = [result.followed for result in results]
        mode = self.config.grading_mode or asked.grading_mode or body.grading_mode or "binary"
        graded = {
            "follow_all_instructions": all(followed),
            "follow_instruction_list": followed,
            "instruction_results": results,
            "unparsed_reason": text.reason if isinstance(text, NoAnswer) else None,
            "reward": float(all(followed)) if mode == "binary" else fmean(followed),
        }
        return InstructionFollowingVerifyResponse(**(body.model_dump() | graded))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, _scores)[0] | by_instruction(tasks)

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        means = {key: agent_metrics[key] for key in ("mean/reward",) if key in agent_metrics}
        return means | highest_k_metrics(agent_metrics, "pass@{k}")


def answer_text(body: InstructionFollowingVerifyRequest) -> str | NoAnswer:
    """What the model said at the very end. A reply that is nothing but the question is no answer."""
    if not ends_with_message(body.response):
        return NoAnswer("the last output item is not a message")
    said = last_assistant_text(body.response)
    if isinstance(said, NoAnswer):
        return said
    copies = any(name.startswith(COPYING) for name in body.verifier_metadata.instruction_id_list)
    if not copies and is_echo(said.value, questions(body)):
        return NoAnswer("the reply repeats the question and nothing else")
    return said.value


def is_echo(text: str, asked: set[str]) -> bool:
    """Whether `text` is one of the questions and hardly a word more. Short questions may be said again."""
    said = " ".join(text.split())
    long = [question for question in asked if len(words(question)) >= SHORTEST_ECHO]
    return any(question in said and len(words(said.replace(question, " ", 1))) < FEWEST_NEW for question in long)


def ends_with_message(response: NeMoGymResponse) -> bool:
    return bool(response.output) and getattr(response.output[-1], "role", None) == "assistant"


def questions(body: InstructionFollowingVerifyRequest) -> set[str]:
    """Everything the model was told, each message with single spaces."""
    given = body.responses_create_params.input
    if isinstance(given, str):
        return {" ".join(given.split())}
    texts = []
    for item in given:
        content = getattr(item, "content", None)
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            texts.append("".join(part.get("text", "") for part in content if isinstance(part, dict)))
    return {" ".join(text.split()) for text in texts}


def _scores(rollout: dict[str, Any]) -> dict[str, float]:
    followed = rollout["follow_instruction_list"]
    return {"accuracy": float(rollout["follow_all_instructions"]), "instruction_accuracy": fmean(followed)}


def by_instruction(tasks: list[list[dict[str, Any]]]) -> dict[str, float]:
    """The part of rollouts that follow each instruction, by its id."""
    followed: dict[str, list[bool]] = defaultdict(list)
    results = [one for task in tasks for rollout in task for one in rollout.get("instruction_results", [])]
    for result in results:
        followed[result["instruction_id"]].append(result["followed"])
    return {f"followed/{name}": fmean(found) for name, found in sorted(followed.items())}


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(InstructionFollowingServer),
    request_model=InstructionFollowingVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    InstructionFollowingServer.run_webserver()
