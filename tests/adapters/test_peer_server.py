"""Episodes of other packages run in separate processes: their faults are failures, never rewards."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.coin_source import write_source

GYM = (sys.executable, "-m", "nemo_gym.cli.main")


def policy(*texts: str, name: str = "policy_model") -> dict[str, Any]:
    """The configuration of a scripted model that plays these moves in turn."""
    script = {"entrypoint": "app.py", "script": [{"text": text} for text in texts], "after_last": "cycle"}
    return {name: {"responses_api_models": {"scripted_model": script}}}


def evaluate(folder: Path, name: str, *words: str, models: dict[str, Any] | None = None) -> tuple[list, list]:
    """Run the environment `name`; return scored and failed rollouts in the order of the tasks."""
    model = folder / "model.yaml"
    model.write_text(json.dumps(models or policy("[1]")))
    command = [*GYM, "eval", "run", "--environment", name, "--config", str(model), "--search-dir", str(folder)]
    result = subprocess.run(
        [*command, "-o", "out.jsonl", "--overwrite", "-q", "--max-attempts", "1", *words],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False, env={**os.environ},
    )  # fmt: skip
    files = [folder / "out.jsonl", folder / "out_failures.jsonl"]
    lines = [path.read_text().splitlines() if path.exists() else [] for path in files]
    assert any(lines), result.stderr
    scored, failed = ([json.loads(line) for line in part] for part in lines)
    return sorted(scored, key=lambda row: row["_ng_task_index"]), failed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_source(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("start", "no coins"),
        ("raise", "lost coin"),
        ("exit", "its process ended with status 7"),
        ("hang", "did not answer within 2 s"),
        ("spin", "did not answer within 2 s"),
        ("memory", "out of memory"),
    ],
)
def test_a_fault_of_the_environment_is_a_failure_without_a_reward(folder, fault, reason):
    """A crash that counts as a reward of 0 teaches a policy nothing true, and lowers every score."""
    source = folder / "resources_servers" / "coins" / "source.yaml"
    source.write_text(source.read_text() + "server: {step_timeout_seconds: 2}\n")

    scored, failed = evaluate(folder, f"coins:Coins-v0?size=2&fault={fault}")

    assert scored == []
    assert len(failed) == 2
    assert all(reason in json.dumps(failure) for failure in failed)


def test_sixty_four_sessions_at_once_play_as_they_do_alone(folder):
    """The game seeds globally: in one process, 64 episodes would draw from each other's numbers."""
    name = "coins:Coins-v0?size=64&opponent=random_move"
    together, _ = evaluate(folder, name, "--concurrency", "64")
    alone, _ = evaluate(folder, name, "--concurrency", "1", "--limit", "8")

    def game(row: dict[str, Any]) -> Any:
        observations = [item["content"] for item in row["response"]["output"] if item.get("role") == "user"]
        return row["seed"], row["reward"], row["other_turns"], observations

    assert len(together) == 64
    assert [game(row) for row in together[:8]] == [game(row) for row in alone]
    assert len({row["seed"] for row in together}) == 64


def test_an_illegal_move_is_attributed_to_the_player_that_made_it(folder):
    """A score must tell whether the policy played badly or broke the rules, and a win by forfeit from a win."""
    own, _ = evaluate(folder, "coins:Coins-v0?size=2", models=policy("three"))
    other, _ = evaluate(folder, "coins:Coins-v0?size=2&opponent=script:three")

    assert [(row["reward"], row["ending"]) for row in own] == [(-1.0, "illegal_move")] * 2
    assert [(row["reward"], row["ending"]) for row in other] == [(1.0, "opponent_illegal_move")] * 2


def test_another_model_plays_the_opponent_with_its_own_conversation(folder):
    """Self-play and matches between models need a second model server, which sees its own side of the game."""
    models = {**policy("[1]"), **policy("[2]", "[1]", name="rival")}
    scored, failed = evaluate(folder, "coins:Coins-v0?size=4&opponent=rival", models=models)

    assert failed == []
    for row in scored:
        assert [turn["action"] for turn in row["other_turns"]][:2] == ["[2]", "[1]"][: len(row["other_turns"])]
        assert sum(row["rewards"].values()) == 0
        assert row["rewards"][str(row["player"])] == row["reward"] == sum(row["step_rewards"])


def test_an_opponent_that_does_not_answer_fails_the_rollout(folder):
    """A rival whose endpoint is down has not lost the game."""
    models = {**policy("[1]"), **policy("[1]", name="rival")}
    models["rival"]["responses_api_models"]["scripted_model"]["script"] = [{"fault": {"kind": "status", "status": 500}}]

    scored, failed = evaluate(folder, "coins:Coins-v0?size=2&opponent=rival", models=models)

    assert scored == []
    assert len(failed) == 2


@pytest.mark.parametrize(
    "turn", [{"text": ""}, {"text": "[1]", "incomplete": "max_output_tokens"}], ids=["empty", "cut"]
)
def test_an_incomplete_reply_of_an_opponent_or_grader_fails_the_rollout(folder, turn):
    """A cut reply is no illegal move of the rival, and a cut grade is no grade: neither is about the policy."""
    models = {**policy("[1]"), **policy("[1]", name="rival")}
    models["rival"]["responses_api_models"]["scripted_model"]["script"] = [turn]

    scored, failed = evaluate(folder, "coins:Coins-v0?size=2&opponent=rival", models=models)

    assert scored == []
    assert len(failed) == 2
    assert all("the model rival gave no complete answer" in json.dumps(failure) for failure in failed)


def test_an_ungraded_episode_that_the_agent_stops_has_reached_a_limit(folder):
    """A package that grades only at the end has said nothing yet, so a reward of 0 would be invented."""
    app = folder / "resources_servers" / "coins" / "app.py"
    app.write_text(app.read_text().replace("    ROW = CoinRow\n", "    ROW = CoinRow\n    GRADES_AT_END = True\n"))

    scored, failed = evaluate(folder, "coins:Coins-v0?size=2&max_turns=1&opponent=first_move")
    finished, _ = evaluate(folder, "coins:Coins-v0?size=2&opponent=first_move")

    assert scored == []
    assert [(row["_ng_failure_class"], row["_ng_failure"]["which"]) for row in failed] == [("limit", "steps")] * 2
    assert [row["ending"] for row in finished] == ["finished"] * 2


def test_an_episode_that_the_agent_stops_is_truncated(folder):
    """With max_turns the game has no winner, which the record says."""
    scored, _ = evaluate(folder, "coins:Coins-v0?size=2&max_turns=1&opponent=first_move")

    assert [(row["ending"], row["truncated"], row["reward"]) for row in scored] == [("stopped", True, 0.0)] * 2


def test_a_run_can_be_resumed(folder):
    """The generated rows are a file like any other, so what is scored is not played again."""
    first, _ = evaluate(folder, "coins:Coins-v0?size=6", "--limit", "2")
    model = folder / "model.yaml"
    command = [*GYM, "eval", "run", "--environment", "coins:Coins-v0?size=6", "--config", str(model)]
    for _ in range(2):
        result = subprocess.run(
            [*command, "--search-dir", str(folder), "-o", "all.jsonl", "--resume", "-q", "--json"],
            cwd=folder, capture_output=True, text=True, timeout=240, check=True,
        )  # fmt: skip
        report = json.loads(result.stdout)

    assert len(first) == 2
    assert len((folder / "all.jsonl").read_text().splitlines()) == 6
    assert report["exit_status"] == 0
