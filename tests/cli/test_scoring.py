"""Which servers a scoring command needs, and how it shows scores."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli.options import UsageError, options, resolved_without_model
from nemo_gym.cli.scoring import only, plain_config, servers_with_metrics, show_scores, shown
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


def test_only_servers_with_metrics_of_their_own_are_asked(here: Path) -> None:
    """`simple_agent` passes the question on; of the two resources servers one has hooks."""
    config = plain_config(resolved_without_model(with_config(here, ARITHMETIC, WEATHER)).config)
    agents = [name for name, block in config.items() if isinstance(block, dict) and "responses_api_agents" in block]

    assert len(agents) == 2
    assert servers_with_metrics(config, agents) == {"arithmetic_simple_agent": "arithmetic"}
    assert servers_with_metrics(config, ["somebody_else"]) == {}


def test_a_part_of_a_configuration_has_no_other_servers(here: Path) -> None:
    """What is not needed is not started; everything that is no server stays."""
    part = only(resolved_without_model([*with_config(here, ARITHMETIC, WEATHER), "+other=1"]), ["arithmetic"])

    assert part["other"] == 1
    assert [name for name, block in plain_config(part).items() if "entrypoint" in str(block)] == ["arithmetic"]


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


def test_what_a_verifier_refers_to_comes_along(here: Path) -> None:
    """A judge is part of the verdict."""
    resolved = resolved_without_model(with_config(here, ARITHMETIC, **JUDGE, **MODEL))

    assert "policy_model" in only(resolved, ["judged"], with_others=True)
    assert "policy_model" not in only(resolved, ["judged"])


def test_a_verifier_without_its_judge_is_refused(here: Path) -> None:
    """Before anything starts, with what to name."""
    resolved = resolved_without_model(with_config(here, **JUDGE))

    with pytest.raises(ConfigError, match="needs the model 'policy_model'"):
        only(resolved, ["judged"], with_others=True)


def test_everything_wrong_with_the_options_is_said_at_once(here: Path) -> None:
    """By flag and by key, whichever the reader used."""
    config = resolved_without_model(["+allow_partial_rollouts=perhaps"]).config
    given = {"rollouts_jsonl_fpath": ("--rollouts", None), "materialized_inputs_jsonl_fpath": ("--inputs", "in.jsonl")}

    with pytest.raises(UsageError) as caught:
        options(RewardProfileConfig, config, given, command="gym eval profile")

    assert "--rollouts (or +rollouts_jsonl_fpath=…) is missing" in str(caught.value)
    assert "+allow_partial_rollouts=…: Input should be a valid boolean" in str(caught.value)
    assert caught.value.exit_status == 2


def test_flags_win_over_keys(here: Path) -> None:
    """What was typed last and closest counts."""
    config = resolved_without_model(
        ["+rollouts_jsonl_fpath=a.jsonl", "+materialized_inputs_jsonl_fpath=b.jsonl"]
    ).config

    asked = options(RewardProfileConfig, config, {"rollouts_jsonl_fpath": ("--rollouts", "c.jsonl")}, command="x")

    assert (asked.rollouts_jsonl_fpath, asked.materialized_inputs_jsonl_fpath) == ("c.jsonl", "b.jsonl")


def test_scores_are_shown_with_intervals_failures_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything needed not to read noise as progress."""
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

    show_scores([entry])

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "solver: 40 rollouts scored, 10 failed (timeout 7, judge_failed 3)"
    assert [line.split()[0] for line in lines[3:9] if line] == ["reward", "pass@2", "pass^2", "failures", "steps"]
    assert "too few tasks" in lines[7]
    assert "    majority@4  61.0000" in lines
    assert "  easy" in lines
    assert shown(entry).keys() == entry.keys() - {"agent_metrics", "group_level_metrics"}
