"""A conversation with scripted follow-ups: the last reply is right when it contains what the row expects."""

import re
from pathlib import Path
from typing import Any, ClassVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.base_resources_server import ReverifyMode
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server
from nemo_gym.grading.normalise import plain_text
from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import (
    GymnasiumConfig,
    GymnasiumServer,
    GymnasiumVerifyRequest,
    GymnasiumVerifyResponse,
    extract_text,
)


def says(text: str, expected: str, label: str | None) -> bool:
    """Whether `expected` stands in `text` as words of its own.

    With `label`, everything that stands behind it has to be the expected: naming candidates is not answering.
    """
    text, expected = plain_text(text), plain_text(expected)
    whole = re.compile(rf"(?<!\w){re.escape(expected)}(?!\w)(?!\.\d)")
    if whole.search(text) is None:
        return False
    if label is None:
        return True
    places = [found.start() for found in re.finditer(re.escape(plain_text(label)), text)]
    return all(whole.match(text, place) is not None for place in places)


class MultiTurnConfig(GymnasiumConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class MultiTurnRow(BaseModel):
    follow_ups: list[str] = []
    """What the user says after the first, second, … reply."""
    expected_substring: str = Field(min_length=1)
    """What the reply to the last of them has to contain; case, width and spaces do not matter."""
    answer_label: str | None = Field(default=None, min_length=1)
    """How `expected_substring` begins: no other value may stand behind it anywhere in the last reply."""

    @model_validator(mode="after")
    def _label_begins_it(self) -> "MultiTurnRow":
        if not plain_text(self.expected_substring):
            raise ValueError("`expected_substring` is empty")
        if self.answer_label and not plain_text(self.expected_substring).startswith(plain_text(self.answer_label)):
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
        self.keep(session_id, 0)
        return None, {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        asked: int = self.kept(session_id)
        if asked < len(metadata["follow_ups"]):
            self.keep(session_id, asked + 1)
            return metadata["follow_ups"][asked], 0.0, False, False, {"follow_up": asked + 1}
        right = says(extract_text(action), metadata["expected_substring"], metadata["answer_label"])
        return None, float(right), True, False, {"found": right}

    async def verify(self, request: Request, body: MultiTurnVerifyRequest) -> GymnasiumVerifyResponse:
        return await super().verify(request, body)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(MultiTurnServer),
    request_model=MultiTurnVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    MultiTurnServer.run_webserver()
