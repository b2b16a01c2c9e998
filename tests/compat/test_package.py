"""The package's top level: names that load on first use, and an import that costs nothing."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym

PLAIN = {"ROOT_DIR", "PARENT_DIR", "WORKING_DIR", "CACHE_DIR", "RESULTS_DIR", "__version__", "__package_name__"}
LAZY = {
    "base_resources_server": """BaseResourcesServerConfig SimpleResourcesServer BaseRunRequest BaseVerifyRequest
        BaseVerifyResponse BaseMultiRewardVerifyResponse BaseSeedSessionRequest BaseSeedSessionResponse ReverifyMode""",
    "base_responses_api_agent": "BaseResponsesAPIAgentConfig SimpleResponsesAPIAgent",
    "base_responses_api_model": "BaseResponsesAPIModelConfig SimpleResponsesAPIModel",
    "server_utils": "ServerClient raise_for_status get_response_json SESSION_ID_KEY",
    "config_types": """BaseServerConfig BaseRunServerInstanceConfig Domain AggregateMetrics AggregateMetricsRequest
        ModelServerRef""",
    "evaluation": "evaluate evaluate_async EvaluationFailed EvaluationResult",
    "openai_utils": """NeMoGymAsyncOpenAI NeMoGymResponse NeMoGymResponseCreateParamsNonStreaming
        NeMoGymChatCompletion NeMoGymChatCompletionCreateParamsNonStreaming""",
}
HOME = {name: module for module, names in LAZY.items() for name in names.split()}


def loaded_after(statement: str) -> set[str]:
    """The modules a fresh interpreter holds after `statement`."""
    script = f"{statement}\nimport json, sys\nsys.stdout.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_all_lists_exactly_the_public_names():
    """`from nemo_gym import *` and the documentation agree on what is public."""
    assert sorted(nemo_gym.__all__) == sorted(PLAIN | set(HOME))
    assert nemo_gym.__all__ == sorted(nemo_gym.__all__)
    assert nemo_gym._LAZY_EXPORTS == HOME


@pytest.mark.parametrize("name", sorted(HOME))
def test_a_lazy_name_is_the_object_of_its_own_module(name):
    """isinstance and `except` work whichever way a class was imported."""
    assert getattr(nemo_gym, name) is getattr(importlib.import_module(f"nemo_gym.{HOME[name]}"), name)
    assert name in dir(nemo_gym)


def test_everything_public_can_be_imported_at_once():
    """Notebooks do it."""
    space: dict[str, object] = {}

    exec("from nemo_gym import *", space)

    assert set(nemo_gym.__all__) <= set(space)


def test_an_unknown_name_is_an_attribute_error():
    """hasattr, copy and pickle probe modules; a surprise exception would break them."""
    assert not hasattr(nemo_gym, "NoSuchName")


def test_importing_the_package_imports_no_server_base():
    """The command line starts in a blink because the package alone pulls in nothing."""
    loaded = loaded_after("import nemo_gym")

    assert "nemo_gym.base_resources_server" not in loaded
    assert not {name for name in loaded if name.split(".")[0] in {"fastapi", "aiohttp", "pydantic", "omegaconf"}}


def test_a_resources_server_imports_no_heavy_package():
    """Every server process pays for what its base imports; engines and vendor SDKs are not part of it."""
    loaded = loaded_after("import nemo_gym.base_resources_server")

    heavy = {"ray", "hydra", "pandas", "wandb", "mlflow", "openai", "anthropic", "mcp"}
    assert {name.split(".")[0] for name in loaded} & heavy == set()


def test_the_folders_beside_the_package_are_importable():
    """Folders import each other as `resources_servers.<name>.app`; the tree root is on the path for that."""
    for name in ("resources_servers", "responses_api_agents", "responses_api_models"):
        module = importlib.import_module(name)
        assert module.__file__ is not None
        assert Path(module.__file__).parent == nemo_gym.PARENT_DIR / name
