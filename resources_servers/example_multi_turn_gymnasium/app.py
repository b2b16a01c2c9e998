"""A conversation with scripted follow-ups: the last reply is right when it contains the expected text."""

import re
from pathlib import Path
from typing import Any, ClassVar

from fastapi import Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from nemo_gym.authoring.gymnasium import (
    GymnasiumConfig,
    GymnasiumServer,
    GymnasiumVerifyRequest,
    GymnasiumVerifyResponse,
    extract_text,
)
from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import ReverifyMode
from nemo_gym.grading.text import normalise_text
from nemo_gym.openai_utils import NeMoGymResponse


def contains_answer(text: str, expected: str, label: str | None) -> bool:
    """Return whether `text` contains `expected` as whole words.

    With `label`, every text that follows the label must be the expected one: naming candidates is not answering.
    """
    text, expected = normalise_text(text), normalise_text(expected)
    whole = re.compile(rf"(?<!\w){re.escape(expected)}(?!\w)(?!\.\d)")
    if whole.search(text) is None:
        return False
    if label is None:
        return True
    starts = [match.start() for match in re.finditer(re.escape(normalise_text(label)), text)]
    return all(whole.match(text, start) is not None for start in starts)


class MultiTurnConfig(GymnasiumConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class MultiTurnRow(BaseModel):
    follow_ups: list[str] = []
    """The user's messages after the first, second, … reply."""
    expected_substring: str = Field(
        min_length=1, validation_alias=AliasChoices("expected_substring", "expected_answer")
    )
    """The text that the last reply must contain; case, width and spaces do not matter."""
    answer_label: str | None = Field(default=None, min_length=1)
    """The beginning of `expected_substring`: no other value may follow it anywhere in the last reply."""

    @model_validator(mode="after")
    def _check_label(self) -> "MultiTurnRow":
        if not normalise_text(self.expected_substring):
            raise ValueError("`expected_substring` is empty")
        if self.answer_label and not normalise_text(self.expected_substring).startswith(
            normalise_text(self.answer_label)
        ):
            raise ValueError("`expected_substring` does not begin with `answer_label`")
        return self


class MultiTurnVerifyRequest(MultiTurnRow, GymnasiumVerifyRequest):
    model_config = ConfigDict(extra="allow")


class MultiTurnServer(GymnasiumServer):
    HOSTING = "cell"
    REPLAYS = True
    ROW: ClassVar[type[BaseModel]] = MultiTurnRow

    config: MultiTurnConfig

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[None, dict[str, Any]]:  # noqa: ARG002
        self.save_state(session_id, 0)
        return None, {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        turn: int = self.load_state(session_id)
        if turn < len(metadata["follow_ups"]):
            self.save_state(session_id, turn + 1)
            return metadata["follow_ups"][turn], 0.0, False, False, {"follow_up": turn + 1}
        is_correct = contains_answer(extract_text(action), metadata["expected_substring"], metadata["answer_label"])
        return None, float(is_correct), True, False, {"found": is_correct}

    async def verify(self, request: Request, body: MultiTurnVerifyRequest) -> GymnasiumVerifyResponse:
        return await super().verify(request, body)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MultiTurnServer),
    request_model=MultiTurnVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MultiTurnServer.run_webserver()
