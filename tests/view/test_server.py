"""The viewer's server answers its page and no other page."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view import server
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.server import view_app


@pytest.fixture
def client(index: RunDatabase) -> Iterator[TestClient]:
    with TestClient(view_app([index]), base_url="http://127.0.0.1:8000") as client:
        yield client


def test_the_page_and_its_parts_are_served_with_a_strict_policy(client: TestClient) -> None:
    """Even if text became HTML by a mistake of ours, it could run nothing and send nothing."""
    for path in ("/", "/app.js", "/core/filter.js", "/tokens.css", "/vendor/temml.min.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
    assert client.get("/../../etc/passwd").status_code == 404
    assert client.get("/secrets.txt").status_code == 404


def test_the_viewer_has_an_icon(client: TestClient) -> None:
    """Browsers request it for every page; a 404 looks like an error of the viewer in their console."""
    answer = client.get("/favicon.ico")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.startswith("<svg")


def test_every_request_of_the_page_is_answered(client: TestClient) -> None:
    """The page depends on each of these endpoints."""
    assert [run["name"] for run in client.get("/api/runs").json()] == ["rollouts/rollouts"]
    assert client.get("/api/runs/0").json()["reward"]["n"] == 5
    assert client.get("/api/runs/0/rollouts", params={"where": "reward < 1"}).json()["total"] == 2
    assert client.get("/api/runs/0/tasks").json()["total"] == 3
    rollout = client.get("/api/runs/0/rollouts/1/0").json()
    assert (rollout["previous"], rollout["next"], rollout["next_failed"]) == ([0, 1], [1, 1], [2, 1])
    assert rollout["fields"]["reward"] == 0.0
    assert client.get("/api/runs/0/rollouts/1/0/text/4").json()["text"] == "It is 4."
    assert client.get("/api/runs/0/rollouts/1/0/tokens/4").json()["count"] == 0
    assert client.get("/api/runs/0/rollouts/1/0/raw").json()["_ng_task_index"] == 1
    assert client.get("/api/compare/0/0").json()["tasks"] == 3


@pytest.mark.parametrize(
    "path",
    ["/api/runs/5", "/api/runs/0/rollouts/99/0", "/api/runs/0/rollouts/99/0/raw", "/api/compare/0/7", "/api/nothing"],
)
def test_a_missing_resource_is_a_404(client: TestClient, path: str) -> None:
    """The page shows it as missing, not as broken."""
    assert client.get(path).status_code == 404


NUMBER_PATHS = (
    "/api/runs/{}",
    "/api/runs/0/rollouts/{}/0",
    "/api/runs/0/rollouts/0/{}/raw",
    "/api/runs/0/rollouts/1/0/text/{}",
    "/api/runs/0/rollouts/1/0/tokens/{}",
    "/api/compare/0/{}",
)


@pytest.mark.parametrize("path", NUMBER_PATHS)
@pytest.mark.parametrize("number", [2**63, 2**64 + 7, "9" * 60, "1" * 5000])
def test_a_number_that_no_database_can_hold_is_a_400(client: TestClient, path: str, number: int | str) -> None:
    """SQLite has integers of 64 bits; a larger one became an error of the viewer, with a traceback in its log."""
    answer = client.get(path.format(number))

    assert answer.status_code == 400
    assert "too large" in answer.text


QUERIES = (
    "/api/runs/0/rollouts?start={}",
    "/api/runs/0/rollouts?count={}",
    "/api/runs/0/tasks?start={}",
    "/api/runs/0/rollouts/1/0?count={}",
    "/api/runs/0/rollouts/1/0/text/0?start={}",
    "/api/runs/0/rollouts/1/0/raw?attempt={}",
)


@pytest.mark.parametrize("path", QUERIES)
def test_a_huge_number_in_a_query_is_a_400(client: TestClient, path: str) -> None:
    """The first rows, shown for a place that does not exist, look like the rows that were asked for."""
    for number in (10**14, 2**63, "9" * 60, "1" * 5000):
        answer = client.get(path.format(number))
        assert (answer.status_code, answer.text) == (400, "a number in the query is too large")
    for number in ("0" * 5000, "", "NaN"):  # the page sends the last two for a number that its address does not have
        assert client.get(path.format(number)).status_code == 200


@pytest.mark.parametrize("path", NUMBER_PATHS)
def test_the_largest_number_is_only_missing(client: TestClient, path: str) -> None:
    """The limit must not refuse what the database can look up."""
    assert client.get(path.format(2**63 - 1)).status_code in (200, 404)


@pytest.mark.parametrize("where", [f"turns > {2**63}", f"reward < -{2**70}", 'answer == "\\ud800"', '"\\0" in answer'])
def test_strange_values_in_a_filter_are_no_server_error(client: TestClient, where: str) -> None:
    """A filter comes from the address bar; whatever it says must not be a traceback."""
    assert client.get("/api/runs/0/rollouts", params={"where": where}).status_code in (200, 400)


def test_a_filter_that_cannot_be_read_is_explained(client: TestClient) -> None:
    """The page shows the reason under the filter."""
    answer = client.get("/api/runs/0/rollouts", params={"where": "rewrd < 1"})

    assert answer.status_code == 400
    assert "reward" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
    ],
)
def test_other_pages_cannot_read_it(client: TestClient, headers: dict[str, str]) -> None:
    """A page that the user visits must not read rollouts through the browser, by any name of this machine."""
    assert client.get("/api/runs", headers=headers).status_code == 403


def test_writing_methods_are_refused(client: TestClient) -> None:
    """Viewing must never change results."""
    assert client.post("/api/runs").status_code == 403
    assert client.delete("/api/runs/0").status_code == 403


def test_beyond_this_machine_a_token_is_required(index: RunDatabase) -> None:
    """Rollouts may be confidential."""
    app = view_app([index], token="right", hosts=frozenset({"10.0.0.5"}))
    with TestClient(app, base_url="http://10.0.0.5:8000") as client:
        assert client.get("/api/runs").status_code == 403
        assert client.get("/api/runs", params={"token": "wrong"}).status_code == 403
        assert client.get("/", params={"token": "right"}).status_code == 200
        assert client.get("/api/runs").status_code == 200, "the token is kept as a cookie"


async def test_one_damaged_run_does_not_end_the_following_of_others(
    index: RunDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file without permission, or a full disk, concerns one run; the server goes on and the log says it once."""
    broken = RunDatabase(RunFiles(tmp_path / "broken.jsonl"), tmp_path / "broken.sqlite")
    has_grown_thrice = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls: list[int] = []

    def fail() -> bool:
        raise PermissionError("no access")

    def grow() -> bool:
        calls.append(1)
        if len(calls) == 3:
            loop.call_soon_threadsafe(has_grown_thrice.set)
        return False

    monkeypatch.setattr(server, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(broken, "grow", fail)
    monkeypatch.setattr(index, "grow", grow)
    task = asyncio.create_task(server._follow_files([broken, index], None))
    await asyncio.wait_for(has_grown_thrice.wait(), 30)
    task.cancel()

    assert caplog.text.count("no access") == 1
