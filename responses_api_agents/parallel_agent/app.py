"""Parallel agent: several attempts at a task at the same time, of which the agent itself chooses one.

Each candidate has its own session of the environment. The choice is a majority of equal answers, or that of the model;
the verifier scores the chosen candidate and is no part of the choice. All candidates are recorded.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Request
from pydantic import Field, field_validator

from nemo_gym.authoring.episode_agent import (
    EpisodeRunRequest,
    EpisodeSession,
    EpisodeVerifyResponse,
    episode_response,
    has_invocation,
    model_limit,
    prompt_items,
    record_invocation,
    text_message,
    verify_request,
)
from nemo_gym.authoring.tool_agent import ToolAgent, ToolAgentConfig
from nemo_gym.errors import AgentFailed
from nemo_gym.grading.extraction import assistant_texts, last_boxed
from nemo_gym.grading.result_types import ExtractedAnswer
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.wire.observations import ObservedStatus

CHOICE = "choice"
"""The id of the invocation in which the model chooses."""
QUESTION = """Several answers to one task follow. Compare them and choose the best one.

The task:
{task}

{answers}

Write the number of the best answer as the last thing in your reply."""
_NUMBER = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")


class ParallelAgentConfig(ToolAgentConfig):
    candidates: int = Field(default=4, ge=2, le=256)
    """Attempts at each task."""
    choose: Literal["majority", "best"] = "majority"
    r"""`majority`: the answer that most candidates have; `best`: the model compares the answers."""
    answer_pattern: str | None = None
    r"""Regular expression whose last match is the answer (its first group, if it has one).

    By default the last `\boxed{}`, or the last line of the last message."""

    @field_validator("answer_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"answer_pattern is no regular expression: {error}") from None
        return pattern


@dataclass
class Candidate:
    """One attempt."""

    name: str
    body: EpisodeRunRequest
    session: EpisodeSession
    response: NeMoGymResponse
    answer: str

    @property
    def text(self) -> str:
        """The last message of the model."""
        texts = assistant_texts(self.response)
        return texts[-1] if texts else ""

    @property
    def is_complete(self) -> bool:
        return self.session.limit is None and not self.response.incomplete_details and bool(self.text.strip())


class ParallelAgent(ToolAgent):
    HOSTING = "cell"

    config: ParallelAgentConfig

    async def run(self, request: Request, body: EpisodeRunRequest) -> EpisodeVerifyResponse:
        """Run all candidates, choose one of them and verify it."""
        spent: list[Any] = []
        names = [f"candidate-{number}" for number in range(1, self.config.candidates + 1)]
        sessions = [EpisodeSession(dict(request.cookies), spent=spent, invocation_id=name) for name in names]
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._candidate(number, with_seed(body, number), session))
                        for number, session in enumerate(sessions)
                    ]
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            candidates = [task.result() for task in tasks]
            chosen, votes = await self._choose(candidates, self.url_path_for_run("/v1/responses", body))
            for each in candidates:
                self._record(each, chosen)
            facts = {"choose": self.config.choose, "chosen": chosen.name, "votes": votes}
            listed = [{"name": each.name, "answer": each.answer, "limit": each.session.limit} for each in candidates]
            whole = episode_response(chosen.response, chosen.response.output, spent)
            result = await self.verify_with_turns(verify_request(chosen.body, whole), chosen.session)
            return result.model_copy(update={"parallel": facts | {"candidates": listed}})
        finally:
            for session in sessions:
                self.close_unverified(session)

    async def _candidate(self, number: int, body: EpisodeRunRequest, session: EpisodeSession) -> Candidate:
        """Run one attempt in a separate session."""
        reply = await self._reply(self.config.resources_server.name, "/seed_session", body, session)
        session.opened = True
        body = await self.open_episode(reply, body, session)
        path = self.url_path_for_run("/v1/responses", body)
        async with self.external_tools(body.responses_create_params, session) as params:
            response = await self.episode(params, path, session)
        if session.external is not None:
            body = body.model_copy(update={"responses_create_params": params})
        texts = assistant_texts(response)
        answer = find_answer(texts[-1] if texts else "", self.config.answer_pattern)
        return Candidate(f"candidate-{number + 1}", body, session, response, answer)

    async def _choose(self, candidates: Sequence[Candidate], path: str) -> tuple[Candidate, dict[str, int]]:
        """Return the chosen candidate and the votes by answer; without votes, the first complete one or the first."""
        complete = [each for each in candidates if each.is_complete]
        if not complete:
            return candidates[0], {}
        votes = Counter(each.answer for each in complete if each.answer)
        if self.config.choose == "majority":
            if not votes:
                return complete[0], {}
            most = max(votes.values())
            return next(each for each in complete if votes[each.answer] == most), dict(votes)
        if len(complete) == 1:
            return complete[0], dict(votes)
        return await self._ask_for_best(complete, path), dict(votes)

    async def _ask_for_best(self, candidates: Sequence[Candidate], path: str) -> Candidate:
        """Let the model compare the answers; the first one if its reply names none.

        Raises:
            AgentFailed: a limit of the model cut the comparison.
        """
        answers = "\n\n".join(f"Answer {number}:\n{each.text}" for number, each in enumerate(candidates, 1))
        task = task_text(candidates[0].body.responses_create_params)
        question = QUESTION.replace("{task}", task).replace("{answers}", answers)
        session = EpisodeSession(dict(candidates[0].session.cookies), invocation_id=CHOICE)
        message = text_message("user", question)
        params = NeMoGymResponseCreateParamsNonStreaming(input=[message])
        response = await self.ask_model(path, params, session)
        candidates[0].session.spent.append(response.usage)
        if response.incomplete_details:
            problem = f"the comparison of {len(candidates)} answers hit a limit of the model"
            limit = model_limit(response) or response.incomplete_details.reason
            raise AgentFailed(
                f"{problem}: {limit}", where=self.config.name, fix="fewer candidates, or choose: majority"
            )
        numbers = [int(text) for text in _NUMBER.findall("\n".join(assistant_texts(response)))]
        chosen = candidates[numbers[-1] - 1] if numbers and 1 <= numbers[-1] <= len(candidates) else candidates[0]
        record_invocation(chosen.session, CHOICE, [message, *response.output])
        return chosen

    def _record(self, candidate: Candidate, chosen: Candidate) -> None:
        """Record an attempt with those of the chosen one, whose session is that of the record."""
        session = candidate.session
        if not has_invocation(session, candidate.name):  # compaction has recorded it
            items = prompt_items(candidate.body.responses_create_params.input)
            status: ObservedStatus = "completed" if candidate.is_complete else "incomplete"
            record_invocation(session, candidate.name, [*items, *candidate.response.output], status=status)
        if candidate is not chosen:
            chosen.session.observations += session.observations


def with_seed(body: EpisodeRunRequest, number: int) -> EpisodeRunRequest:
    """Return a request whose sampling seed, if it has one, differs for each candidate."""
    params = body.responses_create_params
    try:
        extra = json.loads((params.metadata or {}).get("extra_body") or "{}")
    except ValueError:
        return body
    if number == 0 or not isinstance(extra, dict) or not isinstance(extra.get("seed"), int):
        return body
    metadata = {**(params.metadata or {}), "extra_body": json.dumps(extra | {"seed": extra["seed"] + number})}
    return body.model_copy(update={"responses_create_params": params.model_copy(update={"metadata": metadata})})


def find_answer(text: str, pattern: str | None = None) -> str:
    """Return the answer in a text, in the form in which answers are counted."""
    if pattern is not None:
        matches = list(re.finditer(pattern, text))
        answer = (matches[-1][1] if matches[-1].re.groups else matches[-1][0]) if matches else ""
    else:
        boxed = last_boxed(text)
        lines = text.strip().splitlines()
        answer = boxed.value if isinstance(boxed, ExtractedAnswer) else lines[-1] if lines else ""
    return _SPACE.sub(" ", answer or "").strip().strip(".*$ ").casefold()


def task_text(params: NeMoGymResponseCreateParamsNonStreaming) -> str:
    """Return the texts of the messages of a request."""
    if isinstance(params.input, str):
        return params.input
    contents = [getattr(item, "content", None) for item in params.input]
    return "\n\n".join(content for content in contents if isinstance(content, str))


if __name__ == "__main__":
    ParallelAgent.run_webserver()
