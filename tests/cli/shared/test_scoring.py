"""The servers that a scoring command needs, and the scores that it prints."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.shared.options import UsageError, load_options, resolve_config
from nemo_gym.cli.shared.scoring import keep_servers, print_scores, servers_with_metrics, summarize_entry
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import ConfigError
from nemo_gym.reward_profile import RewardProfileConfig

ARITHMETIC = "resources_servers/arithmetic/configs/arithmetic.yaml"
WEATHER = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_config(folder: Path, *paths: str, **blocks: Any) -> list[str]:
    (folder / "own.yaml").write_text(json.dumps(blocks))
    return [f"+config_paths={json.dumps([*paths, str(folder / 'own.yaml')])}"]


def test_only_servers_with_custom_metrics_are_used(here: Path) -> None:
    """`simple_agent` forwards the request; one of the two resources servers has hooks."""
    config = as_dict(
        resolve_config(argparse.Namespace(overrides=with_config(here, ARITHMETIC, WEATHER)), needs_model=False).config
    )
    agents = [name for name, block in config.items() if isinstance(block, dict) and "responses_api_agents" in block]

    assert len(agents) == 2
    assert servers_with_metrics(config, agents) == {"arithmetic_simple_agent": "arithmetic"}
    assert servers_with_metrics(config, ["another_agent"]) == {}


def test_other_servers_are_removed_from_the_configuration(here: Path) -> None:
    """Servers that are not needed do not start; other keys stay."""
    part = keep_servers(
        resolve_config(
            argparse.Namespace(overrides=[*with_config(here, ARITHMETIC, WEATHER), "+other=1"]), needs_model=False
        ),
        ["arithmetic"],
    )

    assert part["other"] == 1
    assert [name for name, block in as_dict(part).items() if "entrypoint" in str(block)] == ["arithmetic"]


JUDGE = {
    "judged": {
        "resources_servers": {
            "arithmetic": {
                "entrypoint": "app.py",
                "domain": "math",
                "judge": {"type": "responses_api_models", "name": "policy_model"},
            }
        }
    }
}
MODEL = {
    "policy_model": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "script": [{"text": "x"}]}}}
}


def test_servers_that_a_verifier_refers_to_are_kept(here: Path) -> None:
    """A verdict may need a judge."""
    resolved = resolve_config(
        argparse.Namespace(overrides=with_config(here, ARITHMETIC, **JUDGE, **MODEL)), needs_model=False
    )

    assert "policy_model" in keep_servers(resolved, ["judged"], with_references=True)
    assert "policy_model" not in keep_servers(resolved, ["judged"])


def test_a_verifier_without_its_judge_is_refused(here: Path) -> None:
    """The error comes before servers start and names the model."""
    resolved = resolve_config(argparse.Namespace(overrides=with_config(here, **JUDGE)), needs_model=False)

    with pytest.raises(ConfigError, match="needs the model 'policy_model'"):
        keep_servers(resolved, ["judged"], with_references=True)


def test_all_problems_of_options_are_reported_together(here: Path) -> None:
    """The message names flag and key, because users use both."""
    config = resolve_config(argparse.Namespace(overrides=["+allow_partial_rollouts=perhaps"]), needs_model=False).config
    args = argparse.Namespace(
        rollouts_jsonl_fpath=None,
        materialized_inputs_jsonl_fpath="in.jsonl",
        flag_names={"rollouts_jsonl_fpath": "--rollouts"},
        prog="gym eval profile",
    )

    with pytest.raises(UsageError) as caught:
        load_options(RewardProfileConfig, config, args)

    assert "--rollouts (or +rollouts_jsonl_fpath=…) is missing" in str(caught.value)
    assert "+allow_partial_rollouts=…: Input should be a valid boolean" in str(caught.value)
    assert caught.value.exit_status == 2


def test_flags_win_over_keys(here: Path) -> None:
    """The command line is more specific than a file."""
    config = resolve_config(
        argparse.Namespace(overrides=["+rollouts_jsonl_fpath=a.jsonl", "+materialized_inputs_jsonl_fpath=b.jsonl"])
    ).config

    options = load_options(RewardProfileConfig, config, argparse.Namespace(rollouts_jsonl_fpath="c.jsonl"))

    assert (options.rollouts_jsonl_fpath, options.materialized_inputs_jsonl_fpath) == ("c.jsonl", "b.jsonl")


def test_scores_are_printed_with_intervals_failures_and_subsets(capsys: pytest.CaptureFixture[str]) -> None:
    """Readers must be able to distinguish noise from progress."""
    reward = {"mean": 0.5, "standard_error": 0.1, "ci95": [0.3, 0.7], "num_rollouts": 40, "num_tasks": 10}
    tries = {"pass@k": {"1": reward, "2": {**reward, "mean": 0.75}}, "pass^k": {"1": reward, "2": reward}}
    entry = {
        "agent_ref": {"name": "solver"},
        "agent_metrics": {"long": 1},
        "group_level_metrics": [],
        "key_metrics": {"mean/reward": 0.5, "majority@4": 61.0, "note": "text"},
        "scores": {
            "steps": {"mean": 12345.0, "num_rollouts": 1, "num_tasks": 1},
            "reward": {**reward, **tries, "failures_as_zero": {**reward, "mean": 0.4}},
        },
        "attrition": {"scored": 40, "failed": 10, "failed_by_kind": {"timeout": 7, "judge_failed": 3}},
        "subsets": {"easy": {"reward": reward}},
    }

    print_scores([entry])

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "solver: 40 rollouts scored, 10 failed (timeout 7, judge_failed 3)"
    assert [line.split()[0] for line in lines[3:9] if line] == ["reward", "pass@2", "pass^2", "failures", "steps"]
    assert lines[7].split() == ["steps", "12,345", "1"]
    assert "    majority@4  61" in lines
    assert "  easy" in lines
    assert summarize_entry(entry).keys() == entry.keys() - {"agent_metrics", "group_level_metrics"}
