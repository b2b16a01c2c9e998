"""The JSON that the pages are built on: runs, overview, columns, rows, tasks, rollouts and comparison."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nemo_gym.rollouts.run_files import find_runs, lock_path_for, run_path_for
from nemo_gym.rollouts.run_folders import RunLabels
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import add_new_runs, view_app
from tests.view.records import failure, record, write

ADVICE = {"model_refused": "Check the key."}


def with_labels(task: int, repeat: int, reward: float, **more: Any) -> dict[str, Any]:
    """A record with a model, a difficulty and components of the reward."""
    components = {"correct": reward, "format": 1.0}
    labels: dict[str, Any] = {"difficulty": "hard" if task % 2 else "easy", "reward_components": components}
    made = record(task, repeat, reward, **labels, **more)
    made["response"]["model"] = "small"
    return made


@pytest.fixture
def run(index_of: Callable[..., RunDatabase]) -> RunDatabase:
    """Four tasks twice: task 1 is never solved, task 2 once, one repeat of task 3 failed."""
    rewards = [
        (task, repeat, float(task != 1 and not (task == 2 and repeat))) for task in range(4) for repeat in (0, 1)
    ]
    scored = [with_labels(*one) for one in rewards[:-1]]
    return index_of(*scored, failures=(failure(3, 1, "model_refused"),))


@pytest.fixture
def client(run: RunDatabase) -> Iterator[TestClient]:
    with TestClient(view_app([run], advice=ADVICE), base_url="http://127.0.0.1:8000") as client:
        yield client


def get(client: TestClient, path: str, **query: Any) -> Any:
    """The JSON of a path below /api/runs/0."""
    answer = client.get(f"/api/runs/0{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_list_of_runs_has_what_tells_them_apart(client: TestClient, run: RunDatabase) -> None:
    """A folder has many runs; users choose by environment, model, date and score."""
    RunLabels(environment="math", model="ignored", name="nightly", tags=["a"]).write(run.run.output)
    run_path_for(run.run.output).write_text(
        json.dumps({"started_at": "2026-11-16T22:04:00+00:00", "planned": {"count": 10}})
    )

    (entry,) = client.get("/api/runs").json()

    assert (entry["title"], entry["environment"], entry["model"], entry["tags"]) == ("nightly", "math", "small", ["a"])
    assert entry["outcome_counts"] == {"scored": 7, "limit": 0, "failed": 1, "cancelled": 0}
    assert (entry["planned"], entry["rollouts"], entry["state"]) == (10, 8, "interrupted")
    assert entry["started_at"].startswith("2026-11-16") and entry["seconds"] >= 0
    assert "cost" not in entry, "without prices the cost is unknown, not zero"


def test_a_run_is_running_while_its_collector_lives(client: TestClient, run: RunDatabase) -> None:
    """A stale lock of a dead process must not show a run as running until someone removes it."""
    lock = lock_path_for(run.run.output)
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    assert client.get("/api/runs").json()[0]["state"] == "running"
    for content in (json.dumps({"pid": 2**31 - 1, "host": socket.gethostname()}), "[1]", "not JSON", ""):
        lock.write_text(content)
        assert client.get("/api/runs").json()[0]["state"] == "unknown"


def test_the_cost_is_computed_from_the_prices_of_the_run(client: TestClient, run: RunDatabase) -> None:
    """Prices differ between providers and change; the run stores its own."""
    RunLabels(prices={"small": {"input": 1.0, "output": 2.0}}).write(run.run.output)

    cost = get(client, "")["cost"]

    assert cost["dollars"] == pytest.approx(7 * (10 * 1.0 + 5 * 2.0) / 1e6)
    assert cost["unpriced"] == []


def test_every_number_of_the_overview_leads_to_its_rollouts(client: TestClient) -> None:
    """The count beside a link and the rows behind it must agree."""
    summary = get(client, "")
    links = [(one["where"], one["count"]) for one in summary["outcomes_by_kind"]]
    links += [(one["where"], one["count"]) for one in summary["histogram"]["bins"]]
    links += [(one["where"], one["count"]) for one in summary["health"] if "where" in one]
    links += [(one["where"], one["count"]) for one in summary["saved_filters"]]
    links += [(one["where"] + " and reward != None", one["n"]) for one in summary["subsets"]]
    links += [(one["where"], one["values"]["rollouts"]) for one in summary["matrix"]["rows"]]

    assert len(links) > 25
    for where, count in links:
        assert get(client, "/rollouts", where=where, count=0)["total"] == count, where


def test_the_overview_says_what_is_wrong(client: TestClient) -> None:
    """Findings come before the score is believed."""
    health = get(client, "")["health"]

    assert health[0]["level"] == "error"
    assert health[0]["title"] == "1 rollout failed: model_refused at policy_model"
    assert health[0]["explain"] == "model_refused"


def test_columns_exist_only_with_values_and_can_all_be_used(client: TestClient) -> None:
    """An empty column is noise; one that is offered must filter, sort and export."""
    columns = get(client, "/columns")["columns"]
    names = [column["name"] for column in columns]

    assert {"task", "repeat", "model", "difficulty", "correct", "format", "tokens"} <= set(names)
    assert not {"seconds", "rule", "cut_off", "seconds_model"} & set(names)
    for name in names:
        assert get(client, "/rollouts", where=f"{name} != None", sort=name, down=1)["total"] > 0
    lines = client.get("/api/runs/0/rollouts.csv", params={"columns": ",".join(names)}).text.splitlines()
    assert lines[0] == ",".join(names) and len(lines) == 9


def test_csv_has_the_rows_of_the_filter_and_no_formulas(index_of: Callable[..., RunDatabase]) -> None:
    """A spreadsheet runs text that begins with = as a formula, and a model wrote the text."""
    run = index_of(record(0, 0, 0.0, answer="=HYPERLINK(1)"), record(1, 0, 1.0, answer='a "b", c'))
    with TestClient(view_app([run]), base_url="http://127.0.0.1:8000") as client:
        answer = client.get(
            "/api/runs/0/rollouts.csv", params={"where": "reward < 1", "columns": "task,answer,nothing"}
        )
        assert answer.text == "task,answer\r\n0,'=HYPERLINK(1)\r\n"
        assert "attachment" in answer.headers["content-disposition"]
        both = client.get("/api/runs/0/rollouts.csv", params={"columns": "answer", "sort": "task", "down": "1"})
        assert both.text.splitlines()[1] == '"a ""b"", c"'
        assert client.get("/api/runs/0/rollouts.csv", params={"where": "nope == 1"}).status_code == 400


@pytest.mark.parametrize(
    ("where", "place", "repaired"),
    [
        ('reward < 1 and agnt == "x"', "agnt", 'reward < 1 and agent == "x"'),
        ("  rewrd < 1", "rewrd", "  reward < 1"),
        ('"😀" in answer and rewrd < 1', "rewrd", '"😀" in answer and reward < 1'),
        ("reward = 1", "=", "reward == 1"),
        ("difficlty == 'hard'", "difficlty", "difficulty == 'hard'"),
    ],
)
def test_a_filter_error_has_its_place_and_a_repair(client: TestClient, where: str, place: str, repaired: str) -> None:
    """The page underlines the word and repairs it with one click; JavaScript counts UTF-16 units."""
    error = client.get("/api/runs/0/rollouts", params={"where": where})
    facts = error.json()
    text = where.encode("utf-16-le")

    assert error.status_code == 400
    assert text[2 * facts["from"] : 2 * facts["to"]].decode("utf-16-le") == place
    assert facts["repaired"] == repaired
    assert get(client, "/rollouts", where=repaired)["total"] >= 0


def test_a_filter_without_result_is_taken_apart(client: TestClient) -> None:
    """Which part is too strict, and what values there are."""
    facts = get(client, "/filter", where='reward > 1 and (turns > 1 or task == 0) and "4" in answer')

    assert (facts["total"], facts["of"]) == (0, 8)
    assert [part["text"] for part in facts["parts"]] == ["reward > 1", "(turns > 1 or task == 0)", '"4" in answer']
    assert [part["total"] for part in facts["parts"]] == [0, 7, 7]
    assert {"name": "reward", "min": 0.0, "max": 1.0} in facts["columns"]


@pytest.mark.parametrize("sort", ["task", "reward", "tokens", "difficulty", "correct", "answer"])
@pytest.mark.parametrize("down", ["", "1"])
def test_a_rollout_has_its_place_and_neighbours_in_the_table(client: TestClient, sort: str, down: str) -> None:
    """Previous and next follow what the user saw in the table, in its order."""
    query = {"where": "task > 0", "sort": sort, "down": down}
    rows = get(client, "/rollouts", **query)["rows"]
    places = [(row["task"], row["rollout"]) for row in rows]

    for place, (task, repeat) in enumerate(places):
        page = get(client, f"/rollouts/{task}/{repeat}", **query)
        assert (page["position"], page["matches"]) == (place, len(places))
        assert page["previous"] == (list(places[place - 1]) if place else None)
        assert page["next"] == (list(places[place + 1]) if place + 1 < len(places) else None)
    at = get(client, "/rollouts", **query, at="2:1", count=3)
    assert (2, 1) in [(row["task"], row["rollout"]) for row in at["rows"]]
    assert get(client, "/rollouts", where="task > 0", at="0:0")["position"] is None


def test_tasks_are_grouped_by_their_results(client: TestClient) -> None:
    """Mixed tasks have a signal for training; those never solved may have a wrong verifier."""
    everything = get(client, "/tasks")

    assert everything["groups"] == {"all": 4, "mixed": 1, "solved": 2, "unsolved": 1, "unscored": 0}
    assert [row["task"] for row in get(client, "/tasks", group="mixed")["rows"]] == [2]
    (unsolved,) = get(client, "/tasks", group="unsolved")["rows"]
    assert (unsolved["task"], unsolved["scored"], unsolved["solved"], unsolved["agent"]) == (1, 2, 0, "the_agent")
    assert [row["task"] for row in get(client, "/tasks", sort="mean")["rows"]] == [1, 2, 0, 3]


def test_the_rollout_page_has_turns_and_a_verdict(client: TestClient) -> None:
    """Reward, why, and what the other repeats did stand beside the conversation."""
    page = get(client, "/rollouts/2/1")

    assert [(turn["turn"], turn["event"], turn["tools"]) for turn in page["turns"]] == [(1, 1, ["add"]), (2, 4, [])]
    assert [event.get("turn") for event in page["events"]] == [None, 1, 1, 1, 2]
    verdict = page["verdict"]
    assert (verdict["headline"], verdict["mean_of_task"], verdict["extracted"]) == ("Wrong answer", 0.5, "nothing")
    assert verdict["components"] == [{"name": "correct", "value": 0.0}, {"name": "format", "value": 1.0}]
    assert [repeat["reward"] for repeat in page["repeats"]] == [1.0, 0.0]
    assert "failure" not in page and "timeline" not in page and "has_tokens" not in page
    assert "seconds" not in page["turns"][0], "a time that was not recorded is absent, not 0"


def test_a_failed_rollout_says_what_happened_and_what_to_do(client: TestClient, run: RunDatabase) -> None:
    """The cause in one line, the guilty server, the command, and who shares the cause."""
    RunLabels(command="gym eval run --environment math").write(run.run.output)

    failed = get(client, "/rollouts/3/1")["failure"]

    assert failed["cause"] == "The model endpoint refused the request: too slow"
    assert [part["name"] for part in failed["path"] if part.get("guilty")] == ["policy_model"]
    assert (failed["advice"], failed["explain"]) == ("Check the key.", "model_refused")
    assert failed["resume_command"] == "gym eval run --environment math --resume"
    assert (failed["same_cause"]["count"], failed["stays"], failed["runs_again"]) == (1, 7, 1)
    assert get(client, "/rollouts", where=failed["same_cause"]["where"])["total"] == 1


def test_two_runs_are_compared_in_words(run: RunDatabase, index_of: Callable[..., RunDatabase]) -> None:
    """The page shows the sentence of the statistics, and links to the tasks that flipped."""
    other = index_of(*[with_labels(task, 0, 1.0) for task in range(4)], name="other")
    with TestClient(view_app([run, other]), base_url="http://127.0.0.1:8000") as client:
        result = client.get("/api/compare/0/1").json()
        several = client.get("/api/compare", params={"runs": "0,1"}).json()

        assert result["flips"] == {"up": 1, "down": 0, "threshold": 0.5}
        assert [(row["task"], row["question"]) for row in result["flip_rows"]] == [(1, "What is 1 + 1?")]
        assert [entry["number"] for entry in result["runs"]] == [0, 1]
        assert [entry["number"] for entry in several["runs"]] == [0, 1]
        for runs in ("0", "0,0", "0,5", "0,x", ""):
            assert client.get("/api/compare", params={"runs": runs}).status_code == 400


def test_the_version_changes_with_the_run(client: TestClient, run: RunDatabase) -> None:
    """The page polls it, and reads again only what changed."""
    before = get(client, "/progress")
    with run.run.output.open("a") as file:
        file.write(json.dumps(with_labels(9, 0, 1.0)) + "\n")
    run.build()
    after = get(client, "/progress")

    assert (before["rows"], after["rows"]) == (8, 9)
    assert before["version"] != after["version"]


def test_side_files_of_another_kind_break_nothing(client: TestClient, run: RunDatabase, tmp_path: Path) -> None:
    """A folder may come from anywhere: links, folders and wrong types in place of the files next to the output."""
    output = run.run.output
    run_path_for(output).write_text(
        json.dumps({"planned": [], "plan": 3, "servers": 1, "started_at": {}, "code": None})
    )
    output.with_name("rollouts_labels.json").write_text('{"prices": {"small": {"input": "x"}}, "tags": 3}')
    output.with_name("rollouts_live.json").mkdir()
    output.with_name("rollouts_annotations.jsonl").symlink_to(tmp_path / "elsewhere")
    output.with_name("rollouts_aggregate_metrics.json").write_text('[{"key_metrics": 3, "agent_ref": 1}, 5]')

    for path in ("", "/columns", "/live", "/annotations", "/rollouts/0/0", "/rollouts/3/1", "/tasks"):
        get(client, path)


def test_a_run_that_starts_later_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users leave the page of a folder open while they start runs; an address must keep its run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "results"
    runs: list[RunDatabase] = []
    add_new_runs(runs, lambda: find_runs([folder]))
    assert runs == [], "a folder that does not exist yet is no error"
    write(folder / "b" / "rollouts.jsonl", record(0, 0))
    add_new_runs(runs, lambda: find_runs([folder]))
    write(folder / "a" / "rollouts.jsonl", record(0, 0))
    add_new_runs(runs, lambda: find_runs([folder]))
    add_new_runs(runs, lambda: find_runs([folder]))

    assert [one.run.name for one in runs] == ["b/rollouts", "a/rollouts"]


def test_the_cost_of_each_agent_stands_in_the_matrix(client: TestClient, run: RunDatabase) -> None:
    """ "What did it cost" is asked by environment; the costs of the agents add up to that of the run."""
    RunLabels(prices={"small": {"input": 1.0, "output": 2.0}}).write(run.run.output)
    summary = get(client, "")

    rows = summary["matrix"]["rows"]

    assert sum(row["values"]["dollars"] for row in rows if row["agent"] is not None) == summary["cost"]["dollars"]


def test_the_version_of_this_package_stands_first(client: TestClient, run: RunDatabase) -> None:
    """The strip has room for one version; alphabetical order chose that of an HTTP client."""
    run.run.identity.write_text('{"code": {"aiohttp": "3", "nemo-gym": "0.6.0", "python": "3.11"}, "rows": "hash"}')

    strip = get(client, "")["identity_strip"]

    assert list(strip["versions"]) == ["nemo-gym", "aiohttp", "python"]


def test_a_text_of_a_conversation_is_found_by_item(client: TestClient) -> None:
    """The page jumps to the part of a long conversation that holds it."""
    assert get(client, "/rollouts/2/1/find", text="let me") == {"events": [1]}
