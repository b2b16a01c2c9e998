"""`--agent-type` pairs environments with agents, and refuses pairs that cannot work before a server starts."""

from argparse import Namespace
from pathlib import Path

import pytest

from nemo_gym.catalog.agent_pairing import ImpossiblePair, agent_config_file, pair_agent
from nemo_gym.catalog.component_names import UnknownName
from nemo_gym.cli.shared.options import UsageError, agent_types

ROOT = Path(__file__).resolve().parents[2]
ROOTS = [ROOT]
EXAMPLE = "resources_servers/coding_task/data/example.jsonl"


def config_of(server: str) -> str:
    return str(ROOT / "resources_servers" / server / "configs" / f"{server}.yaml")


@pytest.mark.parametrize("value", ["", ",", "simple_agent,"])
def test_an_empty_name_of_an_agent_is_refused(value: str) -> None:
    """A shell variable that is not set must not evaluate the default agent instead."""
    with pytest.raises(UsageError, match="has an empty name"):
        agent_types(Namespace(agent_type=value, prog="gym eval run", every_value={"agent_type": [value]}))


def test_an_agent_is_found_by_its_name_or_that_of_its_variant() -> None:
    """Users know programs by name, not by the folder that starts them."""
    folder = ROOT / "responses_api_agents"

    assert agent_config_file("simple_agent", ROOTS) == folder / "simple_agent" / "configs" / "simple_agent.yaml"
    for name in ("codex", "harness_agent/codex"):
        assert agent_config_file(name, ROOTS) == folder / "harness_agent" / "configs" / "codex.yaml"
    for name in ("codexx", "../simple_agent", "", "/etc/passwd"):
        with pytest.raises(UnknownName):
            agent_config_file(name, ROOTS)


def test_the_new_agent_gets_the_environment_the_model_and_the_rows() -> None:
    """Only the agent may differ between two runs that are compared."""
    pairing = pair_agent("codex", [config_of("coding_task")], ROOTS)

    prefix = "++codex.responses_api_agents.harness_agent"
    assert pairing.instance == "codex"
    assert pairing.overrides == [
        f'{prefix}.resources_server={{type: "resources_servers", name: "coding_task"}}',
        f'{prefix}.model_server={{type: "responses_api_models", name: "policy_model"}}',
        f'{prefix}.datasets=[{{name: "example", type: "example", jsonl_fpath: "{EXAMPLE}"}}]',
        "~coding_task_simple_agent",
    ]


@pytest.mark.parametrize(
    ("agent", "servers", "problem"),
    [
        ("codex", ["blackjack"], "blackjack needs gymnasium_agent"),
        ("gymnasium_agent", ["coding_task"], "needs an environment with /reset and /step"),
        ("codex", ["example_single_tool_call"], "not offered over MCP"),
        ("codex", [], "one environment, not none"),
        ("simple_agent", ["mcqa", "quiz"], "one environment, not 2: mcqa, quiz"),
    ],
)
def test_a_pair_that_cannot_work_is_refused(agent: str, servers: list[str], problem: str) -> None:
    """Rollouts of such a pair would all fail, or all score zero."""
    with pytest.raises(ImpossiblePair, match=problem):
        pair_agent(agent, [config_of(server) for server in servers], ROOTS)


def test_tools_that_an_override_offers_over_mcp_are_callable() -> None:
    """The fix that the error names must work."""
    server = "example_single_tool_call"
    with pytest.raises(ImpossiblePair) as refusal:
        pair_agent("codex", [config_of(server)], ROOTS)
    assert refusal.value.fix is not None

    pairing = pair_agent("codex", [config_of(server)], ROOTS, [refusal.value.fix])

    assert pairing.overrides[-1] == f"~{server}_simple_agent"


def test_an_agent_that_contains_its_environment_cannot_be_paired(tmp_path: Path) -> None:
    """Its verifier would ignore the environment of the command."""
    config = tmp_path / "responses_api_agents" / "own_agent" / "configs" / "own_agent.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("own_agent: {responses_api_agents: {own_agent: {entrypoint: app.py}}}\n")

    with pytest.raises(ImpossiblePair, match="contains its environment"):
        pair_agent("own_agent", [config_of("mcqa")], [tmp_path, ROOT])


@pytest.mark.parametrize("agent", ["react_agent", "user_simulation_agent", "orchestrator_agent", "parallel_agent"])
def test_our_own_agents_pair_with_environments_with_tools_and_not_with_turns(agent: str) -> None:
    """Each of them is a loop over the tools of an environment, so any such environment fits."""
    pairing = pair_agent(agent, [config_of("example_single_tool_call")], ROOTS)

    assert (pairing.instance, pairing.overrides[-1]) == (agent, "~example_single_tool_call_simple_agent")
    with pytest.raises(ImpossiblePair, match="blackjack needs gymnasium_agent"):
        pair_agent(agent, [config_of("blackjack")], ROOTS)
