"""Annotations of rollouts: the only thing that the viewer writes, and only for its own page."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from nemo_gym.cli.runs.annotations import annotated_rollouts
from nemo_gym.journal import StoreError
from nemo_gym.rollouts.annotations import Annotation, InvalidAnnotation, append_annotation, read_annotations
from nemo_gym.rollouts.run_files import annotations_path_for, files_of_run, find_runs
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.export import export_bundle
from nemo_gym.view.server import view_app
from tests.view.records import record

PATH = "/api/runs/0/annotations"
LABEL = {"task": 0, "rollout": 1, "verdict": "wrong_verdict", "note": "4 is right"}
ORIGIN = {"origin": "http://127.0.0.1:8000"}


@pytest.fixture
def client(index: RunDatabase) -> Iterator[TestClient]:
    with TestClient(view_app([index]), base_url="http://127.0.0.1:8000") as client:
        yield client


def page_token(client: TestClient) -> str:
    """The token that the page has."""
    match = re.search(r'<meta name="gym-view-token" content="([\w-]+)">', client.get("/").text)
    assert match is not None
    return match[1]


def post(client: TestClient, annotation: Any, **headers: str) -> Any:
    return client.post(PATH, json=annotation, headers={**ORIGIN, "x-gym-view-token": page_token(client), **headers})


def test_a_label_is_stored_next_to_the_run_and_shown(client: TestClient, index: RunDatabase) -> None:
    """A reader marks a wrong verdict while reading, and finds it again by a filter."""
    answer = post(client, LABEL)

    assert answer.status_code == 200 and answer.json()["at"]
    (line,) = annotations_path_for(index.run.output).read_text().splitlines()
    assert {name: json.loads(line)[name] for name in LABEL} == LABEL
    rows = client.get("/api/runs/0/rollouts", params={"where": 'annotation == "wrong_verdict"'}).json()["rows"]
    assert [(row["task"], row["rollout"], row["annotation"]["note"]) for row in rows] == [(0, 1, "4 is right")]
    assert client.get("/api/runs/0/rollouts/0/1").json()["annotation"]["verdict"] == "wrong_verdict"
    assert client.get(PATH).json()["annotations"][0]["task"] == 0
    columns = client.get("/api/runs/0/columns").json()["columns"]
    assert [column["values"] for column in columns if column["name"] == "annotation"] == [["wrong_verdict"]]


def test_the_last_label_counts_and_an_empty_one_removes_it(client: TestClient, index: RunDatabase) -> None:
    """People change their mind; the file keeps every line."""
    for annotation in (LABEL, {**LABEL, "verdict": "good"}, {**LABEL, "verdict": "", "note": ""}):
        assert post(client, annotation).status_code == 200

    assert read_annotations(index.run.output) == {}
    assert len(annotations_path_for(index.run.output).read_text().splitlines()) == 3
    assert client.get("/api/runs/0/rollouts", params={"where": "annotation != None"}).json()["total"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"x-gym-view-token": ""},
        {"x-gym-view-token": "wrong"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"host": "evil.example:8000"},
        {"content-type": "text/plain"},
    ],
)
def test_other_pages_cannot_write(client: TestClient, index: RunDatabase, headers: dict[str, str]) -> None:
    """A page that the user visits can send a POST to any port of this machine."""
    assert post(client, LABEL, **headers).status_code == 403
    assert not annotations_path_for(index.run.output).exists()


def test_a_request_without_an_origin_cannot_write(client: TestClient, index: RunDatabase) -> None:
    """Browsers always send the origin of a POST."""
    answer = client.post(PATH, json=LABEL, headers={"x-gym-view-token": page_token(client)})

    assert answer.status_code == 403
    assert not annotations_path_for(index.run.output).exists()


@pytest.mark.parametrize("path", ["/api/runs", "/api/runs/0", "/api/runs/0/rollouts", f"{PATH}/x", "/", "/index.html"])
def test_the_token_opens_nothing_else(client: TestClient, path: str) -> None:
    """Everything else is read-only whatever the request carries."""
    headers = {**ORIGIN, "x-gym-view-token": page_token(client)}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, path, headers=headers, json={}).status_code == 403


def test_it_can_be_switched_off(index: RunDatabase) -> None:
    """Shared machines and archives want a viewer that never writes."""
    with TestClient(view_app([index], has_annotations=False), base_url="http://127.0.0.1:8000") as client:
        assert "gym-view-token" not in client.get("/").text
        assert client.get("/api/session").json()["annotations"] is False
        assert client.post(PATH, json=LABEL, headers={**ORIGIN, "x-gym-view-token": ""}).status_code == 403


def test_every_process_has_its_own_token(index: RunDatabase) -> None:
    """A token of an earlier process must not open a later one."""
    tokens = []
    for _ in range(2):
        with TestClient(view_app([index]), base_url="http://127.0.0.1:8000") as client:
            tokens.append(page_token(client))

    assert tokens[0] != tokens[1]


@pytest.mark.parametrize(
    ("annotation", "status"),
    [
        ({**LABEL, "verdict": "nonsense"}, 400),
        ({**LABEL, "note": "x" * 4001}, 400),
        ({**LABEL, "note": 3}, 400),
        ({**LABEL, "task": -1}, 400),
        ({**LABEL, "task": 2**63}, 400),
        ({**LABEL, "task": True}, 400),
        ({"verdict": "good"}, 400),
        ([LABEL], 400),
        ({**LABEL, "task": 77}, 404),
        ({**LABEL, "note": "x" * 100_000}, 413),
    ],
)
def test_a_label_that_makes_no_sense_is_refused(
    client: TestClient, index: RunDatabase, annotation: Any, status: int
) -> None:
    """One clear answer, and nothing is written."""
    answer = post(client, annotation)

    assert answer.status_code == status and answer.json()["error"]
    assert not annotations_path_for(index.run.output).exists()


def test_a_link_is_not_followed(client: TestClient, index: RunDatabase, tmp_path: Path) -> None:
    """A run folder from elsewhere must not make the viewer write into another file."""
    target = tmp_path / "precious"
    target.write_text("keep\n")
    annotations_path_for(index.run.output).symlink_to(target)

    assert post(client, LABEL).status_code == 409
    assert target.read_text() == "keep\n"
    assert read_annotations(index.run.output) == {}


def test_a_torn_line_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    """A crash may leave half a line."""
    output = tmp_path / "rollouts.jsonl"
    append_annotation(output, Annotation(0, 0, "good"))
    path = annotations_path_for(output)
    path.write_bytes(path.read_bytes() + b'{"task": 1, "rol')

    append_annotation(output, Annotation(2, 0, "unsure", "half \ud83d a character".encode("utf-8", "replace").decode()))

    assert {one.task: one.verdict for one in read_annotations(output).values()} == {0: "good", 2: "unsure"}


def test_lines_that_are_no_labels_are_skipped(tmp_path: Path) -> None:
    """Another program may have written into the file."""
    output = tmp_path / "rollouts.jsonl"
    lines = ["{not json", "[1]", '{"task": "x"}', '{"task": 1, "rollout": 0, "verdict": "good"}', "x" * 10_000]
    annotations_path_for(output).write_text("\n".join(lines) + "\n")

    assert list(read_annotations(output)) == [(1, 0)]
    with pytest.raises(InvalidAnnotation, match="one of good, wrong_verdict, unsure"):
        Annotation.parse({"task": 0, "rollout": 0, "verdict": "great"})


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """The user must learn that the annotation was not saved."""
    with pytest.raises(StoreError, match="nowhere"):
        append_annotation(tmp_path / "nowhere" / "rollouts.jsonl", Annotation(0, 0, "good"))


def test_labels_are_data_for_the_calibration_of_judges(index_of: Callable[..., RunDatabase]) -> None:
    """Beside each annotation stands what the verifier and the judge said."""
    message = {"type": "message", "role": "assistant", "content": "[[A=B]]"}
    judged = [{"response": {"output": [message]}, "verdict_label": "A=B"}]
    run = index_of(record(0, 0, 1.0, judge_evaluations=judged), record(1, 0, 0.0))
    append_annotation(run.run.output, Annotation(0, 0, "wrong_verdict", "the units differ"))
    append_annotation(run.run.output, Annotation(1, 0, "good"))
    append_annotation(run.run.output, Annotation(9, 9, "good"))

    rows = list(annotated_rollouts(run.run, set()))

    assert [(row["task"], row["verdict"], row["reward"]) for row in rows] == [
        (0, "wrong_verdict", 1.0),
        (1, "good", 0.0),
    ]
    assert rows[0]["judge"][0]["verdict"] == "A=B" and rows[0]["expected"] == "1"
    assert [row["task"] for row in annotated_rollouts(run.run, {"good"})] == [1]


def test_labels_belong_to_the_run_and_stay_out_of_bundles(index: RunDatabase, tmp_path: Path) -> None:
    """A new run under the same name moves them aside; a shared bundle has no private notes."""
    append_annotation(index.run.output, Annotation(0, 1, "unsure", "PRIVATE NOTE"))
    index.build()

    export_bundle([index], tmp_path / "bundle")

    assert annotations_path_for(index.run.output) in files_of_run(index.run.output)
    assert find_runs([index.run.output.parent]) == [index.run], "the file of annotations is no run"
    texts = [path.read_text() for path in (tmp_path / "bundle" / "data").rglob("*.js")]
    assert len(texts) == 7 and not any("PRIVATE NOTE" in text or "unsure" in text for text in texts)
