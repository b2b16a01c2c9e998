"""Instruction following: the reply is right when it follows every instruction; all of them can be checked by code."""

import asyncio
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
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
from nemo_gym.grading.result_types import NoAnswer
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from resources_servers.instruction_following.checking import BY_LANGUAGE, InstructionResult, check_instructions
from resources_servers.instruction_following.text import words

GradingMode = Literal["binary", "fraction"]
COPYING = ("copy:", "new:copy")
"""Prefixes of instructions whose right answer is text of the question."""
SHORTEST_ECHO_WORDS = 5
FEWEST_NEW_WORDS = 2
"""A reply that repeats a question of at least the first number of words needs the second number of new words."""


class InstructionFollowingConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    grading_mode: GradingMode | None = None
    """Grading mode of every row; wins over the mode of the row."""


class Instructions(BaseModel):
    """The instructions that the reply must follow."""

    model_config = ConfigDict(extra="allow")

    instruction_id_list: list[str] = Field(min_length=1)
    """Ids such as `punctuation:no_comma`. An unknown id counts as not followed."""
    kwargs: list[dict[str, Any] | None]
    """The arguments of each instruction, in the same order. Nulls are ignored."""
    grading_mode: GradingMode | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> "Instructions":
        if len(self.kwargs) != len(self.instruction_id_list):
            raise ValueError(
                f"`kwargs` has {len(self.kwargs)} entries for {len(self.instruction_id_list)} in `instruction_id_list`"
            )
        return self


class InstructionFollowingRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    verifier_metadata: Instructions
    grading_mode: GradingMode | None = None
    """`binary` (the default): all or nothing. `fraction`: the share of instructions that are followed."""

    @model_validator(mode="before")
    @classmethod
    def _move_published_fields(cls, row: Any) -> Any:
        """Move the list and the arguments of published rows, which have them at the top level."""
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
    """Results in the order of `instruction_id_list`."""
    instruction_results: list[InstructionResult]
    unparsed_reason: str | None = None
    """Reason why the reply has no text to check."""


class InstructionFollowingServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: InstructionFollowingConfig

    def setup_webserver(self) -> FastAPI:
        check_langdetect(self.config.name)
        return super().setup_webserver()

    async def verify(self, body: InstructionFollowingVerifyRequest) -> InstructionFollowingVerifyResponse:
        instructions = body.verifier_metadata
        answer = answer_text(body)
        text = "" if isinstance(answer, NoAnswer) else answer
        if BY_LANGUAGE.isdisjoint(instructions.instruction_id_list):
            results = check_instructions(instructions.instruction_id_list, instructions.kwargs, text)
        else:
            results = await asyncio.to_thread(
                check_instructions, instructions.instruction_id_list, instructions.kwargs, text
            )
        followed = [result.followed for result in results]
        mode = self.config.grading_mode or instructions.grading_mode or body.grading_mode or "binary"
        verdict = {
            "follow_all_instructions": all(followed),
            "follow_instruction_list": followed,
            "instruction_results": results,
            "unparsed_reason": answer.reason if isinstance(answer, NoAnswer) else None,
            "reward": float(all(followed)) if mode == "binary" else fmean(followed),
        }
        return InstructionFollowingVerifyResponse(**(body.model_dump() | verdict))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, _scores)[0] | by_instruction(tasks)

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


def answer_text(body: InstructionFollowingVerifyRequest) -> str | NoAnswer:
    """Return the text of the last output item. A reply that only repeats the question is no answer."""
    if not ends_with_message(body.response):
        return NoAnswer("the last output item is not a message")
    message = last_assistant_text(body.response)
    if isinstance(message, NoAnswer):
        return message
    may_copy = any(name.startswith(COPYING) for name in body.verifier_metadata.instruction_id_list)
    if not may_copy and is_echo(message.value, prompt_texts(body)):
        return NoAnswer("the reply repeats the question and nothing else")
    return message.value


def is_echo(text: str, prompts: set[str]) -> bool:
    """Return whether `text` is one of the questions with hardly a word more. Short questions may be repeated."""
    normalised = " ".join(text.split())
    long_prompts = [prompt for prompt in prompts if len(words(prompt)) >= SHORTEST_ECHO_WORDS]
    return any(
        prompt in normalised and len(words(normalised.replace(prompt, " ", 1))) < FEWEST_NEW_WORDS
        for prompt in long_prompts
    )


def ends_with_message(response: NeMoGymResponse) -> bool:
    return bool(response.output) and getattr(response.output[-1], "role", None) == "assistant"


def prompt_texts(body: InstructionFollowingVerifyRequest) -> set[str]:
    """Return the texts of all messages of the prompt, with single spaces."""
    prompt = body.responses_create_params.input
    if isinstance(prompt, str):
        return {" ".join(prompt.split())}
    texts = []
    for item in prompt:
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
    """Return the share of rollouts that follow each instruction, by its id."""
    followed: dict[str, list[bool]] = defaultdict(list)
    results = [one for task in tasks for rollout in task for one in rollout.get("instruction_results", [])]
    for result in results:
        followed[result["instruction_id"]].append(result["followed"])
    return {f"followed/{name}": fmean(outcomes) for name, outcomes in sorted(followed.items())}


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(InstructionFollowingServer),
    request_model=InstructionFollowingVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
InstructionFollowingResourcesServer = InstructionFollowingServer
InstructionFollowingResourcesServerConfig = InstructionFollowingConfig


if __name__ == "__main__":
    InstructionFollowingServer.run_webserver()
