"""Our folders with the names of existing ones accept the existing rows, keys and class names beside ours."""

import importlib
import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_proof import offline_client, verify_reply
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.server_utils import ServerClient, find_server_class
from resources_servers.bird_sql.app import BirdSQLConfig, BirdSQLResourcesServer, BirdSQLRunRequest
from resources_servers.example_multi_turn_gymnasium.app import MultiTurnServer
from resources_servers.structured_outputs.app import StructuredOutputsServer
from resources_servers.wmt_translation.app import WMTTranslationVerifyRequest

PARAMS: dict[str, Any] = {"responses_create_params": {"input": "?"}}
SERVER_CLASSES = {
    "bird_sql": "BirdSQLResourcesServer",
    "calendar": "CalendarResourcesServer",
    "example_single_tool_call": "SimpleWeatherResourcesServer",
    "instruction_following": "InstructionFollowingResourcesServer",
    "math_with_judge": "LibraryJudgeMathResourcesServer",
    "mcqa": "MCQAResourcesServer",
    "structured_outputs": "StructuredOutputsResourcesServer",
}


@pytest.mark.parametrize(("folder", "name"), SERVER_CLASSES.items())
def test_a_server_is_found_by_its_existing_class_name(folder: str, name: str) -> None:
    """Other folders subclass these classes; a second name must not look like a second server."""
    module = importlib.import_module(f"resources_servers.{folder}.app")

    assert issubclass(getattr(module, name), SimpleResourcesServer)
    assert issubclass(getattr(module, f"{name}Config"), BaseResourcesServerConfig)
    assert find_server_class(module, SimpleResourcesServer) is getattr(module, name)


def test_rows_and_keys_of_text_to_sql() -> None:
    """Prepared BIRD data calls the gold query `gt_sql`."""
    row = BirdSQLRunRequest.model_validate({**PARAMS, "db_id": "shop", "gt_sql": "select 1"})
    address = {"host": "0.0.0.0", "port": 1, "entrypoint": "", "name": ""}
    keys = {"bird_sql_dir": "/data", "sql_execution_timeout_s": 7, "max_concurrency": 3}
    config = BirdSQLConfig.model_validate({**address, **keys})

    assert row.sql == "select 1"
    assert (config.database_dir, config.sql_timeout_secs) == ("/data", 7)


def test_a_server_with_a_sandbox_is_built_with_a_client_without_configuration() -> None:
    """Tests of existing folders build their servers with `MagicMock(spec=ServerClient)`."""
    config = BirdSQLConfig(host="0.0.0.0", port=1, entrypoint="", name="", allow_unsandboxed=True)

    assert BirdSQLResourcesServer(config=config, server_client=MagicMock(spec=ServerClient)).config is config


def test_rows_of_translations() -> None:
    """WMT data calls source and reference `text` and `translation`."""
    languages = {"source_language": "en", "target_language": "de"}
    row = {**PARAMS, **languages, "text": "Good day", "translation": "Guten Tag", "response": text_response("x")}

    request = WMTTranslationVerifyRequest.model_validate(row)

    assert (request.source_text, request.reference) == ("Good day", "Guten Tag")


def test_rows_of_the_multi_turn_example() -> None:
    """Existing rows have an `expected_answer`."""
    row = {**PARAMS, "follow_ups": [], "expected_answer": "Paris"}

    assert verify_reply(offline_client(MultiTurnServer), row, "It is Paris.")["reward"] == 1.0


def structured_reward(schema: Any, arguments: Any, **fields: Any) -> float:
    row = {**PARAMS, "schema_str": json.dumps(schema), "response_mode": "tool_call", **fields}
    call = {"type": "function_call", "call_id": "c", "name": "answer", "arguments": json.dumps(arguments)}
    body = {**row, "response": {**text_response(""), "output": [call]}}
    answer = offline_client(StructuredOutputsServer).post("/verify", json=body)
    assert answer.status_code == 200, answer.text
    reward: float = answer.json()["reward"]
    return reward


def test_rows_of_structured_outputs() -> None:
    """Existing rows put the data into one argument, and mark optional values with the keyword of OpenAPI 3.0."""
    schema = {"type": "object", "properties": {"age": {"type": "integer", "nullable": True}}}

    assert structured_reward(schema, {"age": None}) == 1.0
    assert structured_reward(schema, {"age": "three"}) == 0.0
    assert structured_reward(schema, {"payload": {"age": 3}}, tool_payload_key="payload") == 1.0
    assert structured_reward(schema, {"age": 3}, tool_payload_key="payload") == 0.0
