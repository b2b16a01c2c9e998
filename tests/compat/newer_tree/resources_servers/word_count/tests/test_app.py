import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from nemo_gym.task_data import TaskDataValidator, load_task_data_schema
from resources_servers.word_count.app import WordCountResourcesServer, WordCountResourcesServerConfig

RESPONSE = {
    "id": "r",
    "created_at": 0.0,
    "model": "m",
    "object": "response",
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}


class TestApp:
    def client(self) -> TestClient:
        config = WordCountResourcesServerConfig(host="0.0.0.0", port=8080, entrypoint="", name="")
        server = WordCountResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
        return TestClient(server.setup_webserver())

    def verify(self, text: str, expected_words: int) -> dict:
        message = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        body = {
            "responses_create_params": {"input": []},
            "response": {**RESPONSE, "output": [message]},
            "expected_words": expected_words,
        }
        return self.client().post("/verify", json=body).json()

    @pytest.mark.parametrize(("text", "reward"), [("one two three", 1.0), ("one", 0.0)])
    def test_verify(self, text: str, reward: float) -> None:
        result = self.verify(text, 3)
        assert result["reward"] == reward
        assert result.get("mask_sample", False) is False

    def test_masked(self) -> None:
        result = self.verify("one", -1)
        assert (result["mask_sample"], result["failure_kind"]) == (True, "verifier_error")

    def test_rows_match_the_schema(self) -> None:
        folder = Path(__file__).parent.parent
        validator = TaskDataValidator("word_count", load_task_data_schema(folder), folder / "data" / "example.jsonl")
        for index, line in enumerate((folder / "data" / "example.jsonl").read_text().splitlines()):
            validator.validate_row(index, json.loads(line))
        assert validator.report.clean
