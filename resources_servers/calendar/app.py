"""Calendar: the last JSON list of the reply must be a schedule that keeps every constraint."""

import json
import re
from pathlib import Path
from typing import Any

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
from nemo_gym.grading.data_formats import MalformedData, parse_json
from nemo_gym.grading.extraction import assistant_texts
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics
from resources_servers.calendar.scheduling import DAY, EventRule, parse_constraint, parse_time, schedule_problem

LONGEST_REPLY = 100_000
"""Number of characters at the end of the reply that are searched."""

MOST_STORED_CHARACTERS = 2000

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|[\[\]]')
_THINKING = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)


def last_list(text: str) -> list[Any] | None:
    """Return the last JSON list of a text that could be a calendar, or None.

    The list may stand alone, in a fence or in an object. `[3]` in a sentence is not a calendar; `[]` is an empty one.
    A list that is broken or never closed replaces the one before: falling back would grade a list that the model has
    abandoned. Brackets around words are ignored. Reads the text a bounded number of times.
    """
    text = text[-LONGEST_REPLY:]
    budget = 4 * len(text) + 10_000
    position, last = 0, None
    while budget > 0 and (start := text.find("[", position)) >= 0:
        end = _closing_bracket(text, start)
        budget -= (end or len(text)) - start + 400
        inside = text[start : end or len(text)]
        position = end or start + 1
        try:
            entries = parse_json(inside)
        except MalformedData:
            last = None if '"' in inside else last
        else:
            last = entries if not entries or any(isinstance(entry, dict) for entry in entries) else last
    return last if budget > 0 else None


def _closing_bracket(text: str, start: int) -> int | None:
    """Return the position after the bracket that closes the one at `start`, skipping strings, or None."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start):
        depth += (token[0] == "[") - (token[0] == "]")
        if depth == 0:
            return token.end()
    return None


class CalendarConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class ExpectedEvent(BaseModel):
    model_config = ConfigDict(extra="allow")

    event_id: int | str
    duration: int = Field(gt=0, le=DAY)
    """Minutes."""
    min_time: str
    """Earliest start."""
    max_time: str
    """Latest end."""
    constraint: str | None = None
    """`before 10am`, `after 2pm`, `between 1pm and 3pm` or `at 9:30am`."""

    @field_validator("min_time", "max_time")
    @classmethod
    def _check_time(cls, value: str) -> str:
        if parse_time(value) is None:
            raise ValueError(f"{value!r} is not a time of day")
        return value

    @field_validator("constraint")
    @classmethod
    def _check_constraint(cls, value: str | None) -> str | None:
        if value is not None and value.strip() and parse_constraint(value) is None:
            raise ValueError(f"{value!r} is not a constraint: before, after, at TIME or between TIME and TIME")
        return value

    @property
    def rule(self) -> EventRule:
        earliest, latest = parse_time(self.min_time) or 0, parse_time(self.max_time) or DAY
        constraint = parse_constraint(self.constraint) if self.constraint and self.constraint.strip() else None
        return EventRule(str(self.event_id).strip(), self.duration, earliest, latest, constraint)


class CalendarRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    exp_cal_state: dict[str, ExpectedEvent]
    """The expected events by id."""

    @model_validator(mode="after")
    def _check_ids_differ(self) -> "CalendarRunRequest":
        ids = [str(event.event_id).strip() for event in self.exp_cal_state.values()]
        if len(set(ids)) != len(ids):
            raise ValueError("two events of `exp_cal_state` have the same event_id")
        return self


class CalendarVerifyRequest(CalendarRunRequest, BaseVerifyRequest):
    pass


class CalendarVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    extracted_answer: str | None
    """The graded list, as JSON."""
    reject_reason: str | None = None
    """The reason for a reward of zero."""


class CalendarServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: CalendarConfig

    async def verify(self, body: CalendarVerifyRequest) -> CalendarVerifyResponse:
        entries, reason = self.grade(body)
        verdict = {
            "extracted_answer": None if entries is None else json.dumps(entries)[:MOST_STORED_CHARACTERS],
            "reject_reason": reason,
            "reward": float(reason is None),
        }
        return CalendarVerifyResponse(**(body.model_dump() | verdict))

    def grade(self, body: CalendarVerifyRequest) -> tuple[list[Any] | None, str | None]:
        """Return the schedule of the reply, and the reason why it is wrong."""
        texts = assistant_texts(body.response)
        text = texts[-1] if texts else ""
        if not body.exp_cal_state:
            return None, None
        if _THINKING.search(text):
            return None, "there is a thinking tag in the reply"
        entries = last_list(text)
        if entries is None:
            return None, "there is no JSON list in the reply"
        return entries, schedule_problem(entries, [event.rule for event in body.exp_cal_state.values()])

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks)[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(CalendarServer),
    request_model=CalendarVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
CalendarResourcesServer = CalendarServer
CalendarResourcesServerConfig = CalendarConfig


if __name__ == "__main__":
    CalendarServer.run_webserver()
