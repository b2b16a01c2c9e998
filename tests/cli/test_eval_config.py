"""Flags over keys, and everything that is wrong with them told before anything is started."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.eval_config import (
    check_agent,
    collection_config,
    driver_of,
    grace_seconds,
    misspelt,
    prepare_command,
    repeats,
)
from nemo_gym.cli.eval_flags import add_rollout_arguments
from nemo_gym.cli.options import UsageError
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection import RolloutCollectionConfig


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_rollout_arguments(parser)
    return parser.parse_args(words)


def nothing_to_gather(split: str | None, target: Path, prompted: bool) -> Path:
    raise AssertionError("an input was named")


def configured(rows: Path, *words: str, **keys: Any) -> RolloutCollectionConfig:
    return collection_config(parsed("-i", str(rows), *words), OmegaConf.create(keys), nothing_to_gather)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")
    return path


def test_flags_win_over_keys(rows: Path) -> None:
    """What is typed now beats what stands in a file."""
    chosen = configured(
        rows, "--limit", "3", "-o", "mine.jsonl", "--temperature", "0.5",
        limit=7, num_repeats=4, responses_create_params={"temperature": 1.0, "top_p": 0.9},
    )  # fmt: skip

    assert (chosen.limit, chosen.num_repeats, chosen.output_jsonl_fpath) == (3, 4, "mine.jsonl")
    assert chosen.responses_create_params == {"temperature": 0.5, "top_p": 0.9}


def test_every_flag_reaches_its_key(rows: Path) -> None:
    """A flag that is parsed and forgotten is a lie."""
    words = "-a agent --num-repeats 2 --concurrency 8 --resume --force-resume --disable-aggregation --max-failures 5 -x"
    limits = "--max-attempts 4 --rollout-timeout 60 --max-steps 9 --max-rollout-tokens 1000 --max-total-tokens 5000"
    chosen = configured(rows, *words.split(), *limits.split(), "--top-p", "0.9", "--max-output-tokens", "10")

    assert chosen.model_dump(
        include={
            "agent_name", "num_repeats", "num_samples_in_parallel", "resume_from_cache", "force_resume",
            "disable_aggregation", "max_failures", "fail_fast", "responses_create_params", "max_rollout_attempts",
            "rollout_timeout_seconds", "max_steps_per_rollout", "max_tokens_per_rollout", "max_total_tokens",
        }
    ) == {
        "agent_name": "agent",
        "num_repeats": 2,
        "num_samples_in_parallel": 8,
        "resume_from_cache": True,
        "force_resume": True,
        "disable_aggregation": True,
        "max_failures": 5,
        "fail_fast": True,
        "responses_create_params": {"top_p": 0.9, "max_output_tokens": 10},
        "max_rollout_attempts": 4,
        "rollout_timeout_seconds": 60.0,
        "max_steps_per_rollout": 9,
        "max_tokens_per_rollout": 1000,
        "max_total_tokens": 5000,
    }  # fmt: skip
    assert configured(rows, "--overwrite").overwrite


def test_repeats_may_differ_by_agent() -> None:
    """Mixed files have easy agents and noisy ones."""
    assert repeats("4") == 4
    assert repeats("math=8, _default=2") == {"math": 8, "_default": 2}
    for text in ("math=many", "0", "math=0,_default=1", "", "x"):
        with pytest.raises(UsageError, match="neither a number from 1 nor NAME=N"):
            repeats(text)


def test_all_problems_are_told_together(rows: Path) -> None:
    """One error per attempt is a poor way to learn what is wrong."""
    with pytest.raises(UsageError) as raised:
        configured(rows, "--limit", "-1", "--concurrency", "0", verify_timeout_seconds=0)

    told = str(raised.value)
    assert raised.value.exit_status == 2
    for part in ("--limit (or +limit=…)", "--concurrency (or +num_samples_in_parallel=…)", "+verify_timeout_seconds=…"):
        assert part in told


def test_the_earlier_name_of_a_key_is_still_read(rows: Path) -> None:
    """Configurations live longer than names."""
    assert configured(rows).upload_rollouts
    with pytest.warns(DeprecationWarning, match="upload_rollouts"):
        assert not configured(rows, upload_rollouts_to_wandb=False).upload_rollouts


def test_missing_files_are_found_before_servers_are_started(rows: Path, tmp_path: Path) -> None:
    """Starting servers takes seconds, building their environments minutes."""
    with pytest.raises(UsageError) as raised:
        configured(tmp_path / "nope.jsonl", "--prompt-config", "nope.yaml")

    assert "nope.jsonl" in str(raised.value)
    assert "nope.yaml" in str(raised.value)


def test_resuming_and_overwriting_exclude_each_other(rows: Path) -> None:
    """One keeps what the other removes."""
    with pytest.raises(UsageError, match="--overwrite removes"):
        configured(rows, "--resume", "--overwrite")


def test_rows_come_from_the_agents_where_none_are_named(rows: Path) -> None:
    """The first command anybody types names an environment and nothing else."""
    asked: list[Any] = []

    def gather(split: str | None, target: Path, prompted: bool) -> Path:
        asked.append((split, target, prompted))
        return rows

    chosen = collection_config(parsed("--split", "example", "-o", "out/x.jsonl"), DictConfig({}), gather)

    assert asked == [("example", Path("out/x.jsonl"), False)]
    assert chosen.input_jsonl_fpath == str(rows)


def test_an_override_that_nobody_reads_is_questioned() -> None:
    """`+num_repeat=8` would otherwise be a run with one repeat."""
    told = misspelt(["+num_repeat=8", "+limit=3", "++my_own_key=1", "policy_model.x=2"], {"policy_model": {}})

    assert told == ["'num_repeat' is not a key of this command — did you mean 'num_repeats'?"]


def test_an_agent_that_is_not_there_is_named_with_the_nearest_one(rows: Path) -> None:
    """Otherwise every single rollout fails, one by one."""
    served = {"math_agent": {"responses_api_agents": {}}, "policy_model": {"responses_api_models": {}}}

    check_agent(configured(rows, "-a", "math_agent"), served)
    with pytest.raises(UsageError, match="there is no agent 'math_agnt'\n  try: math_agent"):
        check_agent(configured(rows, "-a", "math_agnt"), served)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("no_colon", "not of the form module.path:function"),
        ("no.such.module:run", "cannot import 'no.such.module'"),
        ("json:no_such_function", "'json' has no 'no_such_function'"),
        ("json:__name__", "cannot be called"),
    ],
)
def test_a_driver_that_cannot_be_used_is_refused(rows: Path, named: str, problem: str) -> None:
    """Found before the servers are up, with the key that names it."""
    with pytest.raises(ConfigError, match=problem) as raised:
        driver_of(configured(rows, rollout_collection_driver=named))

    assert raised.value.where == "rollout_collection_driver"


def test_a_driver_is_found_by_its_path(rows: Path) -> None:
    """`module.path:function`, as the contract spells it."""
    import json

    assert driver_of(configured(rows, rollout_collection_driver="json:dumps")) is json.dumps
    assert driver_of(configured(rows)) is None


def test_a_benchmark_without_data_is_prepared_with_the_same_words() -> None:
    """The hint can be pasted."""
    args = argparse.Namespace(config=["my model.yaml"], benchmark="quiz")

    assert prepare_command(args) == "gym eval prepare --config 'my model.yaml' --benchmark quiz"


@pytest.mark.parametrize(("flag", "key", "expected"), [(None, None, 30.0), (None, 5, 5.0), (0.5, 5, 0.5)])
def test_the_grace_period_has_a_flag_and_a_key(flag: float | None, key: float | None, expected: float) -> None:
    """Batch systems give thirty seconds; rollouts may need more."""
    config = DictConfig({} if key is None else {"interrupt_grace_seconds": key})

    assert grace_seconds(argparse.Namespace(grace=flag), config) == expected


@pytest.mark.parametrize("given", [-1.0, float("inf"), float("nan"), True, "long"])
def test_a_grace_period_without_an_end_is_refused(given: Any) -> None:
    """Nothing waits for ever."""
    with pytest.raises(UsageError, match="seconds from 0"):
        grace_seconds(argparse.Namespace(grace=None), DictConfig({"interrupt_grace_seconds": given}))
