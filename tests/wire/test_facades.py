"""The public modules: cheap to import, complete, and free of the packages whose types they replace."""

import importlib.util
import json
import subprocess
import sys

import pytest

import nemo_gym.openai_utils as openai_utils
from nemo_gym.wire import chat_completions, hosted_tool_calls, input_content, responses, responses_options


def loaded_after(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["openai_utils", "anthropic_utils", "rollout_observability", "wire.run_seed_verify"])
def test_importing_the_types_loads_no_client_library(module):
    """They cost half a second each and every server process imports the types."""
    loaded = loaded_after(f"import nemo_gym.{module}")

    assert f"nemo_gym.{module}" in loaded
    assert not loaded & {"openai", "anthropic", "aiohttp", "fastapi", "mcp", "ray"}


def test_every_public_name_of_the_wire_modules_is_in_the_facade():
    """A type that exists but cannot be imported from its public place does not exist for a server folder."""
    public = {
        name
        for module in (chat_completions, hosted_tool_calls, input_content, responses, responses_options)
        for name in vars(module)
        if name.startswith("NeMoGym")
    }

    assert public <= vars(openai_utils).keys()


def test_names_that_do_not_exist_are_attribute_errors():
    """The lazy part of the module must not hide typing mistakes."""
    with pytest.raises(AttributeError, match="NeMoGymNothing"):
        _ = openai_utils.NeMoGymNothing


@pytest.mark.skipif(
    importlib.util.find_spec("nemo_gym.transport.model_client") is None, reason="the client is not there yet"
)
def test_the_client_is_loaded_on_first_use_and_is_the_same_object():
    """Tests patch the name in this module; they must find the class itself."""
    from nemo_gym.transport import model_client

    for name in ("NeMoGymAsyncOpenAI", "RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES"):
        assert getattr(openai_utils, name) is getattr(model_client, name)
