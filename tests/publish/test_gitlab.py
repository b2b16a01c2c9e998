"""Datasets in a GitLab registry: MLflow's client against a real MLflow server and a fake with GitLab's dialect."""

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
from nemo_gym.data.file_transfer import ATTEMPTS, ChecksumMismatch, RegistryError
from nemo_gym.data.gitlab import Registry
from nemo_gym.errors import ConfigError

TOKEN = "glpat-abcdefghijklmnop"
ROWS = b"".join(b'{"responses_create_params":{"input":"%d"}}\n' % n for n in range(60))
NUMBERS = count()


@pytest.fixture(autouse=True)
def mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit MLflow's waits through its environment variables, and restore them after each test."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    monkeypatch.setenv("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")


@dataclass
class FakeGitLab:
    """The registry of one project in memory, and the faults to inject."""

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

    def requests(self, pattern: str) -> list[str]:
        return [line for line in self.seen if re.search(pattern, line)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lab: FakeGitLab

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(split.path)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(split.query).items()}
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
        method({**query, **(json.loads(body) if body else {})})
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

    def on_registered_models_get(self, fields: dict[str, str]) -> None:
        if fields["name"] not in self.lab.models:
            return self.absent()
        self.say(200, {"registered_model": {"name": fields["name"]}})
        return None

    def on_registered_models_create(self, fields: dict[str, str]) -> None:
        self.lab.models[fields["name"]] = {}
        self.say(200, {"registered_model": {"name": fields["name"]}})

    def on_registered_models_delete(self, fields: dict[str, str]) -> None:
        del self.lab.models[fields["name"]]
        self.say(200, {})

    def on_registered_models_get_latest_versions(self, fields: dict[str, str]) -> None:
        versions = self.lab.models[fields["name"]]
        self.say(200, {"model_versions": [self.version_entry(fields["name"], version) for version in versions]})

    def on_model_versions_create(self, fields: dict[str, Any]) -> None:
        version = {tag["key"]: tag["value"] for tag in fields["tags"]}["gitlab.version"]
        run = f"run{next(NUMBERS)}"
        self.lab.models[fields["name"]][version] = run
        self.lab.files[run] = {}
        self.say(200, {"model_version": self.version_entry(fields["name"], version)})

    def on_model_versions_get(self, fields: dict[str, str]) -> None:
        if fields["version"] not in self.lab.models.get(fields["name"], {}):
            return self.absent()
        self.say(200, {"model_version": self.version_entry(fields["name"], fields["version"])})
        return None

    def version_entry(self, name: str, version: str) -> dict[str, str]:
        return {"name": name, "version": version, "run_id": self.lab.models[name][version]}

    def on_runs_get(self, fields: dict[str, str]) -> None:
        uri = f"{self.lab.host}/api/v4/projects/7/packages/ml_models/{fields['run_id']}/files"
        self.say(200, {"run": {"info": {"run_id": fields["run_id"], "artifact_uri": uri}, "data": {}}})


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
    """Return a unique dataset name, because all tests share the real server."""
    return f"sums-{next(NUMBERS)}"


def store(uri: str, name: str, rows: Path, version: str = "0.0.1") -> gitlab.StoredFile:
    config = UploadJsonlDatasetGitlabConfig(dataset_name=name, version=version, input_jsonl_fpath=str(rows))
    return gitlab.upload(config, Registry(uri, TOKEN))


def fetch(uri: str, name: str, target: Path, version: str = "0.0.1", path: str = "train.jsonl", **more: Any) -> Any:
    source = GitlabDatasetSource(type="gitlab", dataset_name=name, version=version, artifact_fpath=path)
    return gitlab.fetch(source, target, Registry(uri, more.pop("token", TOKEN)), **more)


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


def reply(status: int, content: bytes = b"{}") -> Callable[[Any], bool]:
    def answer(handler: Any) -> bool:
        handler.say(status, content)
        return True

    return answer


def test_a_real_mlflow_server_returns_the_uploaded_files(
    mlflow_server: str, name: str, rows: Path, tmp_path: Path
) -> None:
    """The whole life of a dataset: upload, two versions, a second file, download, delete."""
    first = store(mlflow_server, name, rows)
    rows.write_bytes(ROWS * 2)
    store(mlflow_server, name, rows, "0.0.2")
    other = tmp_path / "validation.jsonl"
    other.write_bytes(ROWS.splitlines(keepends=True)[0])
    store(mlflow_server, name, other, "0.0.2")

    one = fetch(mlflow_server, name, tmp_path / "out" / "one.jsonl")
    fetch(mlflow_server, name, tmp_path / "out" / "two.jsonl", "0.0.2")
    fetch(mlflow_server, name, tmp_path / "out" / "three.jsonl", "0.0.2", "validation.jsonl")

    assert first.changed and one.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert (tmp_path / "out" / "one.jsonl").read_bytes() == ROWS
    assert (tmp_path / "out" / "two.jsonl").read_bytes() == ROWS * 2
    assert (tmp_path / "out" / "three.jsonl").read_bytes() == other.read_bytes()
    registry = Registry(mlflow_server, TOKEN)
    assert registry.versions(name) == ["0.0.1", "0.0.2"]

    registry.delete(name)

    assert not registry.has(name)


def test_a_version_is_uploaded_once_and_never_changes(mlflow_server: str, name: str, rows: Path) -> None:
    """Results refer to a version, so its content must never change."""
    store(mlflow_server, name, rows)

    assert not store(mlflow_server, name, rows).changed
    rows.write_bytes(ROWS * 2)
    with pytest.raises(RegistryError, match=r"already has a different train.jsonl"):
        store(mlflow_server, name, rows)


def test_missing_datasets_versions_and_files_are_named(
    mlflow_server: str, name: str, rows: Path, tmp_path: Path
) -> None:
    """The existing versions help the user more than a 404."""
    with pytest.raises(RegistryError, match=f"{name}: unknown dataset"):
        fetch(mlflow_server, name, tmp_path / "x")

    store(mlflow_server, name, rows)

    with pytest.raises(RegistryError, match=r"unknown version 9.9.9; existing: 0.0.1"):
        fetch(mlflow_server, name, tmp_path / "x", "9.9.9")
    with pytest.raises(RegistryError, match="file not found"):
        fetch(mlflow_server, name, tmp_path / "x", path="nope.jsonl")


def test_gitlab_needs_no_runs_and_no_search(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    """GitLab implements only a part of MLflow's protocol; its address selects that part."""
    store(lab.url, name, rows)

    fetch(lab.url, name, tmp_path / "x.jsonl")

    run = lab.models[name]["0.0.1"]
    assert lab.files[run]["train.jsonl"] == ROWS
    assert lab.files[run]["train.jsonl.sha256"].decode() == f"{hashlib.sha256(ROWS).hexdigest()}  train.jsonl\n"
    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
    assert not lab.requests("runs/create|search")
    assert Registry(lab.url, TOKEN).versions(name) == ["0.0.1"]


def test_an_interrupted_upload_is_finished_by_the_next_one(lab: FakeGitLab, name: str, rows: Path) -> None:
    """The checksum file distinguishes an unfinished upload from other content."""
    lab.faults += [("PUT .*/train.jsonl$", reply(500))] * 3
    with pytest.raises(RegistryError):
        store(lab.url, name, rows)
    assert "train.jsonl" not in lab.files[lab.models[name]["0.0.1"]]

    assert store(lab.url, name, rows).changed

    assert lab.files[lab.models[name]["0.0.1"]]["train.jsonl"] == ROWS


def test_a_corrupt_copy_is_an_error(lab: FakeGitLab, name: str, rows: Path) -> None:
    """An upload succeeds only if the registry returns the same bytes."""
    lab.faults += [("GET .*/files/train.jsonl$", reply(200, ROWS.replace(b"7", b"8")))]

    with pytest.raises(ChecksumMismatch, match="the registry's copy has the SHA-256"):
        store(lab.url, name, rows)


def test_an_interrupted_download_is_resumed(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    """Gigabytes that have arrived must not be sent again."""
    store(lab.url, name, rows)
    lab.faults += [("GET .*/files/train.jsonl$", cut_after(500))]

    fetch(lab.url, name, tmp_path / "x.jsonl")

    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
    assert lab.requests("bytes=500-")


def test_the_next_command_resumes_an_abandoned_download(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    """An outage must not cost the gigabytes before it."""
    store(lab.url, name, rows)
    lab.faults += [("GET .*/files/train.jsonl$", reply(503))] * ATTEMPTS
    with pytest.raises(RegistryError, match="gave up after 5 attempts: the registry returned status 503"):
        fetch(lab.url, name, tmp_path / "x.jsonl")

    fetch(lab.url, name, tmp_path / "x.jsonl")

    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
    assert [path.name for path in tmp_path.iterdir() if "x.jsonl" in path.name] == ["x.jsonl"]


def test_a_corrupt_download_is_removed(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    """The next attempt must not continue corrupt content."""
    store(lab.url, name, rows)
    lab.faults += [("GET .*/files/train.jsonl$", reply(200, ROWS.replace(b"7", b"8")))]
    out = tmp_path / "out"

    with pytest.raises(ChecksumMismatch, match="expected"):
        fetch(lab.url, name, out / "x.jsonl")

    assert list(out.iterdir()) == []


def test_a_file_without_a_checksum_can_be_downloaded(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    """Other tools upload datasets without a checksum file."""
    lab.models[name] = {"1.0.0": "old"}
    lab.files["old"] = {"train.jsonl": ROWS}

    digest = fetch(lab.url, name, tmp_path / "x.jsonl", "1.0.0")

    assert digest.sha256 == hashlib.sha256(ROWS).hexdigest()


def test_a_refused_token_is_reported_but_not_shown(lab: FakeGitLab, name: str, tmp_path: Path) -> None:
    """Error messages end up in public logs."""
    with pytest.raises(RegistryError, match=r"rejected the token \(401\)") as refused:
        fetch(lab.url, name, tmp_path / "x", token="glpat-wrongwrongwrong")

    assert "glpat" not in str(refused.value) and "read_api" in str(refused.value)


def test_a_token_in_an_error_message_is_removed(lab: FakeGitLab, name: str, tmp_path: Path) -> None:
    """Servers and proxies repeat request headers in their errors."""
    body_text = json.dumps({"error_code": "BAD", "message": f"odd header Bearer {TOKEN}"}).encode()
    lab.faults += [("GET .*/model-versions/get", reply(400, body_text))]

    with pytest.raises(RegistryError) as refused:
        fetch(lab.url, name, tmp_path / "x")

    assert "odd header" in str(refused.value) and TOKEN not in str(refused.value)


def test_an_unreachable_registry_names_the_setting(name: str, rows: Path) -> None:
    """The usual cause is a wrong address."""
    with pytest.raises(RegistryError, match="mlflow_tracking_uri") as refused:
        store("http://127.0.0.1:9/api/v4/projects/7/ml/mlflow", name, rows)

    assert refused.value.exit_status == 3


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [("two words", "0.0.1", "valid dataset name"), ("x", "1", "x.y.z"), ("x", "v1.0.0", "x.y.z")],
)
def test_names_and_versions_are_checked_before_anything_is_sent(
    name: str, version: str, message: str, rows: Path
) -> None:
    """Typing mistakes should not need the network."""
    with pytest.raises(ConfigError, match=message):
        store("http://127.0.0.1:9", name, rows, version)


def test_the_older_identifier_names_the_same_file(lab: FakeGitLab, name: str, rows: Path, tmp_path: Path) -> None:
    """Existing configurations use `gitlab_identifier`."""
    store(lab.url, name, rows)
    older = JsonlDatasetGitlabIdentifer(dataset_name=name, version="0.0.1", artifact_fpath="train.jsonl")

    gitlab.fetch(older, tmp_path / "x.jsonl", Registry(lab.url, TOKEN))

    assert (tmp_path / "x.jsonl").read_bytes() == ROWS
