"""Datasets in a GitLab registry: MLflow's own client against a real MLflow server and against GitLab's dialect."""

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from nemo_gym.config.schema_datasets import (
    GitlabDatasetSource,
    JsonlDatasetGitlabIdentifer,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.data import gitlab
from nemo_gym.data.gitlab_client import Registry
from nemo_gym.data.hub_transfer import ATTEMPTS, ChecksumMismatch, RegistryError
from nemo_gym.errors import ConfigError

TOKEN = "glpat-abcdefghijklmnop"
ROWS = b"".join(b'{"responses_create_params":{"input":"%d"}}\n' % n for n in range(60))
NUMBERS = count()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is told things through the environment; what a test sets goes with it."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    monkeypatch.setenv("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")


@dataclass
class FakeGitLab:
    """One project's registry in memory, and what shall go wrong."""

    host: str = ""
    models: dict[str, dict[str, str]] = field(default_factory=dict)
    """Dataset -> version -> run."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Run -> name -> content."""
    seen: list[str] = field(default_factory=list)
    faults: list[tuple[str, Callable[[Any], bool]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.host}/api/v4/projects/7/ml/mlflow"

    def asked(self, pattern: str) -> list[str]:
        return [line for line in self.seen if re.search(pattern, line)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lab: FakeGitLab

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(split.path)
        asked = {key: values[0] for key, values in urllib.parse.parse_qs(split.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.lab.seen.append(f"{self.command} {path} {self.headers.get('Range', '')}".rstrip())
        for fault in list(self.lab.faults):
            if re.search(fault[0], f"{self.command} {path}"):
                self.lab.faults.remove(fault)
                if fault[1](self):
                    return None
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.say(401, {"message": "401 Unauthorized"})
        file = re.fullmatch(r"/api/v4/projects/7/packages/ml_models/(\w+)/files/(.+)", path)
        if file:
            return self.file(file[1], file[2], body)
        call = path.removeprefix("/api/v4/projects/7/ml/mlflow/api/2.0/mlflow/").replace("/", "_").replace("-", "_")
        method = getattr(self, f"on_{call}", None)
        if method is None:
            return self.say(404, {"error": "404 Not Found"})
        method({**asked, **(json.loads(body) if body else {})})
        return None

    do_GET = do_POST = do_PUT = do_DELETE = handle_one

    def say(self, status: int, value: Any, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(body)

    def absent(self) -> None:
        self.say(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "not here"})

    def file(self, run: str, name: str, body: bytes) -> None:
        if self.command == "PUT":
            self.lab.files[run][name] = body
            return self.say(201, {})
        content = self.lab.files[run].get(name)
        if content is None:
            return self.say(404, {"message": "404 Not Found"})
        start = int((re.findall(r"\d+", self.headers.get("Range") or "0"))[0])
        if start >= len(content):
            return self.say(416, b"")
        self.say(206 if start else 200, content[start:])
        return None

    def on_registered_models_get(self, asked: dict[str, str]) -> None:
        if asked["name"] not in self.lab.models:
            return self.absent()
        self.say(200, {"registered_model": {"name": asked["name"]}})
        return None

    def on_registered_models_create(self, asked: dict[str, str]) -> None:
        self.lab.models[asked["name"]] = {}
        self.say(200, {"registered_model": {"name": asked["name"]}})

    def on_registered_models_delete(self, asked: dict[str, str]) -> None:
        del self.lab.models[asked["name"]]
        self.say(200, {})

    def on_registered_models_get_latest_versions(self, asked: dict[str, str]) -> None:
        found = self.lab.models[asked["name"]]
        self.say(200, {"model_versions": [self.told(asked["name"], version) for version in found]})

    def on_model_versions_create(self, asked: dict[str, Any]) -> None:
        version = {tag["key"]: tag["value"] for tag in asked["tags"]}["gitlab.version"]
        run = f"run{next(NUMBERS)}"
        self.lab.models[asked["name"]][version] = run
        self.lab.files[run] = {}
        self.say(200, {"model_version": self.told(asked["name"], version)})

    def on_model_versions_get(self, asked: dict[str, str]) -> None:
        if asked["version"] not in self.lab.models.get(asked["name"], {}):
            return self.absent()
        self.say(200, {"model_version": self.told(asked["name"], asked["version"])})
        return None

    def told(self, name: str, version: str) -> dict[str, str]:
        return {"name": name, "version": version, "run_id": self.lab.models[name][version]}

    def on_runs_get(self, asked: dict[str, str]) -> None:
        uri = f"{self.lab.host}/api/v4/projects/7/packages/ml_models/{asked['run_id']}/files"
        self.say(200, {"run": {"info": {"run_id": asked["run_id"], "artifact_uri": uri}, "data": {}}})


@pytest.fixture
def lab() -> Iterator[FakeGitLab]:
    state = FakeGitLab()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"lab": state}))
    server.daemon_threads = True
    state.host = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_bytes(ROWS)
    return path


@pytest.fixture
def name() -> str:
    """A dataset of the test's own: the real server is shared."""
    return f"sums-{next(NUMBERS)}"


def stored(uri: str, name: str, rows: Path, version: str = "0.0.1") -> gitlab.Stored:
    config = UploadJsonlDatasetGitlabConfig(dataset_name=name, version=version, input_jsonl_fpath=str(rows))
    return gitlab.upload(config, tracking_uri=uri, token=TOKEN, pause=0)


def fetched(uri: str, name: str, target: Path, version: str = "0.0.1", path: str = "train.jsonl", **more: Any) -> Any:
    source = GitlabDatasetSource(type="gitlab", dataset_name=name, version=version, artifact_fpath=path)
    return gitlab.fetch(source, target, tracking_uri=uri, token=more.pop("token", TOKEN), pause=0, **more)


def cut_after(bytes_: int) -> Callable[[Any], bool]:
    def answer(handler: Any) -> bool:
        start = int((re.findall(r"\d+", handler.headers.get("Range") or "0"))[0])
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(ROWS) - start))
        handler.end_headers()
        handler.wfile.write(ROWS[start : start + bytes_])
        handler.wfile.flush()
        handler.close_connection = True
        return True

    return answer


def says(status: int, content: bytes = b"{}") -> Callable[[Any], bool]:
    def answer(handler: Any) -> bool:
        handler.say(status, content)
        return True

    return answer


def test_a_real_mlflow_server_gives_back_what_was_uploaded(
    mlflow_server: str, name: str, rows: Path, tmp_path: Path
) -> None:
    """The whole path of seed 003: upload, download, two versions, a second file, delete."""
    first = stored(mlflow_server, name, rows)
    rows.write_bytes(ROWS * 2)
    stored(mlflow_server, name, rows, "0.0.2")
    other = tmp_path / "validation.jsonl"
    other.write_bytes(ROWS.splitlines(keepends=True)[0])
    stored(mlflow_server, name, other, "0.0.2")

    one = fetched(mlflow_server, name, tmp_path / "out" / "one.jsonl")
    fetched(mlflow_server, name, tmp_path / "out" / "two.jsonl", "0.0.2")
    fetched(mlflow_server, name, tmp_path / "out" / "three.jsonl", "0.0.2", "validation.jsonl")

    assert first.changed and one.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert (tmp_path / "out" / "one.jsonl").read_bytes() == ROWS
    assert (tmp_path / "out" / "two.jsonl").read_bytes() == ROWS * 2
    assert (tmp_path / "out" / "three.jsonl").read_bytes() == other.read_bytes()
    registry = Registry(mlflow_server, TOKEN)
    assert registry.versions(name) == ["0.0.1", "0.0.2"]

    registry.delete(name)

    assert not registry.has(name)


def test_a_real_server_that_has_it_is_not_sent_it_again_and_never_gets_other_content(
    mlflow_server: str, name: str, rows: Path
) -> None:
    """A version is what somebody trained on; it does not change under them."""
    stored(mlflow_server, name, rows)

    assert not stored(mlflow_server, name, rows).changed
    rows.write_bytes(ROWS * 2)
    with pytest.raises(RegistryError, match=r"already has a train.jsonl with other content"):
        stored(mlflow_server, name, rows)


def test_a_real_server_names_what_there_is(mlflow_server: str, name: str, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=f"{name}: no such dataset"):
        fetched(mlflow_server, name, tmp_path / "x")

    stored(mlflow_server, name, rows)

    with pytest.raises(RegistryError, match=r"no version 9.9.9; there are: 0.0.1"):
        fetched(mlflow_server, name, tmp_path / "x", "9.9.9")
    with pytest.raises(RegistryError, match="no such file"):
        fetched(mlflow_server, name, tmp_path / "x", path="nope.jsonl")


def test_gitlab_names_versions_itself_and_gives_each_a_place(
    lab: FakeGitLab, name: str, rows: Path, tmp_path: Path
) -> None:
    """GitLab has no runs to make and no search; its dialect is spoken when the address is GitLab's."""
    stored(lab.url, name, rows)

    fetched(lab.url, name, tmp_path / "x.jsonl")

    run = lab.models[name]["0.0.1"]
    assert lab.files[run]["train.jsonl"] == ROWS
    assert lab.files[run]["train.jsonl.sha256"].decode() == f"{hashlib.sha256(ROWS).hexdigest()}  train.jsonl\n"
    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
    assert not lab.asked("runs/create|search")
    assert Registry(lab.url, TOKEN).versions(name) == ["0.0.1"]


def test_an_interrupted_upload_is_finished_by_the_next_one(lab: FakeGitLab, name: str, rows: Path) -> None:
    """The note beside the file says what it was going to be."""
    lab.faults += [("PUT .*/train.jsonl$", says(500))] * 3
    with pytest.raises(RegistryError):
        stored(lab.url, name, rows)
    assert "train.jsonl" not in lab.files[lab.models[name]["0.0.1"]]

    assert stored(lab.url, name, rows).changed

    assert lab.files[lab.models[name]["0.0.1"]]["train.jsonl"] == ROWS


def test_a_copy_with_other_content_is_an_error(lab: FakeGitLab, name: str, rows: Path) -> None:
    lab.faults += [("GET .*/files/train.jsonl$", says(200, ROWS.replace(b"7", b"8")))]

    with pytest.raises(ChecksumMismatch, match="the registry's copy has the SHA-256"):
        stored(lab.url, name, rows)


def test_a_broken_download_continues_where_it_stopped(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    stored(lab.url, name, rows)
    lab.faults += [("GET .*/files/train.jsonl$", cut_after(500))]

    fetched(lab.url, name, tmp_path / "x.jsonl")

    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
    assert lab.asked("bytes=500-")


def test_a_download_that_was_given_up_continues_in_the_next_command(
    lab: FakeGitLab, name: str, rows: Path, tmp_path: Path
) -> None:
    stored(lab.url, name, rows)
    lab.faults += [("GET .*/files/train.jsonl$", says(503))] * ATTEMPTS
    with pytest.raises(RegistryError, match="gave up after 5 attempts: the registry answered 503"):
        fetched(lab.url, name, tmp_path / "x.jsonl")

    fetched(lab.url, name, tmp_path / "x.jsonl")

    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
    assert [path.name for path in tmp_path.iterdir() if "x.jsonl" in path.name] == ["x.jsonl"]


def test_a_download_with_the_wrong_checksum_leaves_nothing_behind(
    lab: FakeGitLab, name: str, rows: Path, tmp_path: Path
) -> None:
    stored(lab.url, name, rows)
    lab.faults += [("GET .*/files/train.jsonl$", says(200, ROWS.replace(b"7", b"8")))]
    out = tmp_path / "out"

    with pytest.raises(ChecksumMismatch, match="the registry says"):
        fetched(lab.url, name, out / "x.jsonl")

    assert list(out.iterdir()) == []


def test_a_file_that_somebody_else_stored_without_a_note_can_be_had(
    lab: FakeGitLab, name: str, rows: Path, tmp_path: Path
) -> None:
    """Datasets uploaded with other tools have no checksum beside them."""
    lab.models[name] = {"1.0.0": "old"}
    lab.files["old"] = {"train.jsonl": ROWS}

    digest = fetched(lab.url, name, tmp_path / "x.jsonl", "1.0.0")

    assert digest.sha256 == hashlib.sha256(ROWS).hexdigest()


def test_a_wrong_token_is_named_as_the_problem_and_not_shown(lab: FakeGitLab, name: str, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"does not accept the token \(401\)") as refused:
        fetched(lab.url, name, tmp_path / "x", token="glpat-wrongwrongwrong")

    assert "glpat" not in str(refused.value) and "read_api" in str(refused.value)


def test_an_error_that_repeats_the_token_is_shown_without_it(lab: FakeGitLab, name: str, tmp_path: Path) -> None:
    said = json.dumps({"error_code": "BAD", "message": f"odd header Bearer {TOKEN}"}).encode()
    lab.faults += [("GET .*/model-versions/get", says(400, said))]

    with pytest.raises(RegistryError) as refused:
        fetched(lab.url, name, tmp_path / "x")

    assert "odd header" in str(refused.value) and TOKEN not in str(refused.value)


def test_a_registry_that_is_not_there_is_one_clear_error(name: str, rows: Path) -> None:
    with pytest.raises(RegistryError, match="mlflow_tracking_uri") as refused:
        stored("http://127.0.0.1:9/api/v4/projects/7/ml/mlflow", name, rows)

    assert refused.value.exit_status == 3


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [("two words", "0.0.1", "dataset's name"), ("x", "1", "x.y.z"), ("x", "v1.0.0", "x.y.z")],
)
def test_names_and_versions_are_checked_before_anything_is_sent(name: str, version: str, told: str, rows: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        stored("http://127.0.0.1:9", name, rows, version)


def test_the_older_identifier_names_the_same_file(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    stored(lab.url, name, rows)
    older = JsonlDatasetGitlabIdentifer(dataset_name=name, version="0.0.1", artifact_fpath="train.jsonl")

    gitlab.fetch(older, tmp_path / "x.jsonl", tracking_uri=lab.url, token=TOKEN)

    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
