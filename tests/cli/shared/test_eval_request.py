"""Flags over keys, and their problems reported before servers start."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.parser import build_parser
from nemo_gym.cli.shared.eval_request import (
    check_agent,
    choose_output,
    collection_config,
    load_driver,
    parse_repeats,
    prepare_command,
    run_labels,
)
from nemo_gym.cli.shared.options import UsageError, config_overrides, resolve_config
from nemo_gym.config.keys import value_of
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection import RolloutCollectionConfig
from nemo_gym.rollouts.row_selection import RowSelection
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.rollouts.run_folders import RunLabels


def parse(*words: str) -> argparse.Namespace:
    parser, _ = build_parser(["eval", "run"])
    return parser.parse_args(["eval", "run", *words], argparse.Namespace(overrides=[]))


def make_collection(rows: Path, *words: str, **keys: Any) -> RolloutCollectionConfig:
    args = parse("-i", str(rows), *words)
    target = Path(args.output_jsonl_fpath or "x.jsonl")
    return collection_config(args, OmegaConf.create(keys), DictConfig({}), target)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")
    return path


def test_flags_win_over_keys(rows: Path) -> None:
    """The command line is more specific than a file."""
    chosen = make_collection(
        rows, "--limit", "3", "-o", "mine.jsonl", "--temperature", "0.5",
        limit=7, num_repeats=4, responses_create_params={"temperature": 1.0, "top_p": 0.9},
    )  # fmt: skip

    assert (chosen.limit, chosen.num_repeats, chosen.output_jsonl_fpath) == (3, 4, "mine.jsonl")
    assert chosen.responses_create_params == {"temperature": 0.5, "top_p": 0.9}


def test_every_flag_reaches_its_key(rows: Path) -> None:
    """A flag without effect misleads its user."""
    words = "-a agent --num-repeats 2 --concurrency 8 --resume --force-resume --disable-aggregation --max-failures 5 -x"
    limits = "--max-attempts 4 --rollout-timeout 60 --max-steps 9 --max-rollout-tokens 1000 --max-total-tokens 5000"
    sampling = "--max-cost 2 --top-p 0.9 --max-output-tokens 10"
    chosen = make_collection(rows, *words.split(), *limits.split(), *sampling.split())

    assert chosen.model_dump(
        include={
            "agent_name", "num_repeats", "num_samples_in_parallel", "resume_from_cache", "force_resume",
            "disable_aggregation", "max_failures", "fail_fast", "responses_create_params", "max_rollout_attempts",
            "rollout_timeout_seconds", "max_steps_per_rollout", "max_tokens_per_rollout", "max_total_tokens",
            "max_total_cost",
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
        "max_total_cost": 2.0,
    }  # fmt: skip
    assert make_collection(rows, "--overwrite").overwrite


def test_repeats_may_differ_by_agent() -> None:
    """Mixed files have easy agents and noisy ones."""
    assert parse_repeats("4") == 4
    assert parse_repeats("math=8, _default=2") == {"math": 8, "_default": 2}
    for text in ("math=many", "0", "math=0,_default=1", "", "x"):
        with pytest.raises(UsageError, match="neither a number from 1 nor NAME=N"):
            parse_repeats(text)


def test_all_problems_are_reported_together(rows: Path) -> None:
    """Users do not want to fix one flag per attempt."""
    with pytest.raises(UsageError) as raised:
        make_collection(rows, "--limit", "-1", "--concurrency", "0", verify_timeout_seconds=0)

    message = str(raised.value)
    assert raised.value.exit_status == 2
    for part in ("--limit (or +limit=…)", "--concurrency (or +num_samples_in_parallel=…)", "+verify_timeout_seconds=…"):
        assert part in message


@pytest.mark.parametrize("text", ["0", "20-10", "0-3", "ten"])
def test_a_limit_that_selects_no_row_is_refused(rows: Path, text: str) -> None:
    """`--limit 0` once ran all rows, which can be expensive."""
    with pytest.raises(UsageError, match="neither a number from 1 nor a range"):
        make_collection(rows, "--limit", text)


def test_the_flags_that_choose_rows_reach_the_selection(rows: Path) -> None:
    """A flag without effect misleads its user."""
    words = ["--limit", "10-20", "--where", "level > 3", "--ids", "a, 7", "--shuffle", "--seed", "5"]

    selection = make_collection(rows, *words).selection

    assert selection == RowSelection(limit="10-20", where="level > 3", ids=("a", "7"), shuffle_seed=5)
    with pytest.raises(UsageError, match="--seed is the seed of --shuffle"):
        make_collection(rows, "--seed", "5")


def test_each_run_gets_a_folder_and_resume_finds_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three plain runs once left only the last two."""
    monkeypatch.chdir(tmp_path)
    labels, config = RunLabels(environment="math", model="org/small"), DictConfig({"results_dir": "runs"})

    first, is_new = choose_output(parse(), config, labels)
    second, _ = choose_output(parse(), config, labels)
    first.touch()
    RunFiles(first).identity.write_text('{"started_at": "2026-01-01"}')
    labels.write(first)

    assert is_new and first.parent != second.parent
    assert first.parent.name.endswith("-math-org_small") and first.name == "rollouts.jsonl"
    assert choose_output(parse("--resume"), config, labels) == (first, False)
    assert choose_output(parse("--resume"), config, RunLabels(environment="math", model="large"))[1]
    assert choose_output(parse("-o", "x.jsonl"), config, labels) == (Path("x.jsonl"), False)


def test_repeated_selectors_combine_and_two_model_types_are_refused() -> None:
    """`--resources-server a --resources-server b` once kept only b, without a word."""
    both = config_overrides(parse("--resources-server", "arithmetic", "--resources-server", "quiz"))[0]

    assert "arithmetic.yaml" in both and "quiz.yaml" in both
    for flag in ("--model-type", "--model"):
        with pytest.raises(UsageError, match=f"{flag} is given as a and b"):
            config_overrides(parse(flag, "a", flag, "b"))


def test_labels_come_from_the_selectors_and_the_policy_model() -> None:
    """They name the folder of the run, and let --resume and --last-failed find it."""
    served = {
        "policy_model": {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}},
        "math_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}},
    }

    assert run_labels(parse("--environment", "math"), {**served, "policy_model_name": "small"}) == RunLabels(
        environment="math", model="small"
    )
    assert run_labels(parse(), served) == RunLabels(environment="math_agent", model="openai_model")


def test_the_earlier_name_of_a_key_is_still_read(rows: Path) -> None:
    """Configurations live longer than names."""
    assert make_collection(rows).upload_rollouts
    with pytest.warns(DeprecationWarning, match="upload_rollouts"):
        assert not make_collection(rows, upload_rollouts_to_wandb=False).upload_rollouts


def test_missing_files_are_found_before_servers_are_started(rows: Path, tmp_path: Path) -> None:
    """Starting servers takes seconds, building their environments takes minutes."""
    with pytest.raises(UsageError) as raised:
        make_collection(tmp_path / "nope.jsonl", "--prompt-config", "nope.yaml")

    assert "nope.jsonl" in str(raised.value)
    assert "nope.yaml" in str(raised.value)


def test_resuming_and_overwriting_exclude_each_other(rows: Path) -> None:
    """One keeps what the other removes."""
    with pytest.raises(UsageError, match="--overwrite removes"):
        make_collection(rows, "--resume", "--overwrite")


def test_rows_come_from_the_agents_without_an_input(tmp_path: Path, rows: Path) -> None:
    """The first command of a new user names an environment and nothing else."""
    rows.write_text('{"responses_create_params": {"input": "hi"}}\n')
    dataset = {"name": "d", "type": "example", "jsonl_fpath": str(rows)}
    agent = {"entrypoint": "app.py", "datasets": [dataset]}
    served = OmegaConf.create({"agent": {"responses_api_agents": {"simple_agent": agent}}})

    chosen = collection_config(parse("--split", "example"), DictConfig({}), served, tmp_path / "x.jsonl")

    assert chosen.input_jsonl_fpath == str(tmp_path / "x" / "preprocessed_datasets" / "example.jsonl")
    assert '"agent"' in Path(chosen.input_jsonl_fpath).read_text()


def test_an_unknown_agent_is_reported_with_the_nearest_name(rows: Path) -> None:
    """Otherwise every rollout would fail."""
    served = {
        "math_agent": {"responses_api_agents": {"simple_agent": {}}},
        "model": {"responses_api_models": {}},
    }

    check_agent(make_collection(rows, "-a", "math_agent"), served)
    with pytest.raises(UsageError, match="unknown agent 'math_agnt'\n  try: math_agent"):
        check_agent(make_collection(rows, "-a", "math_agnt"), served)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_colon", "cannot import 'no_colon'"),
        ("no.such.module:run", "cannot import 'no.such.module:run': No module named 'no'"),
        ("json:no_such_function", "has no attribute 'no_such_function'"),
        ("json:__name__", "cannot be called"),
    ],
)
def test_a_driver_that_cannot_be_used_is_refused(path: str, problem: str) -> None:
    """The error comes before the servers start and names the key."""
    with pytest.raises(ConfigError, match=problem) as raised:
        load_driver(path)

    assert raised.value.where == "rollout_collection_driver"


def test_a_driver_is_found_by_its_path() -> None:
    """The contract promises `module.path:function`."""
    import json

    assert load_driver("json:dumps") is json.dumps
    assert load_driver(None) is None


def test_a_benchmark_without_data_is_prepared_with_the_same_words() -> None:
    """The suggested command can be pasted."""
    args = argparse.Namespace(config=["my model.yaml"], benchmark="quiz")

    assert prepare_command(args) == "gym eval prepare --config 'my model.yaml' --benchmark quiz"


@pytest.mark.parametrize(("words", "seconds"), [([], 30), (["--grace", "0"], 0), (["--grace", "0.5"], 0.5)])
def test_a_flag_sets_its_key(words: list[str], seconds: float) -> None:
    """Batch systems allow thirty seconds; rollouts may need more. 0 is a value, not an absent flag."""
    config = resolve_config(parse(*words), needs_model=False).config

    assert value_of(config, "interrupt_grace_seconds") == seconds


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_a_grace_period_without_an_end_is_refused(seconds: str) -> None:
    """Every wait ends."""
    with pytest.raises(ConfigError, match="'interrupt_grace_seconds' must be a number from 0"):
        resolve_config(parse("--grace", seconds), needs_model=False)
