"""`gym dataset collate --download` fetches missing rows from the registry that the configuration names."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")
pytest.importorskip("mlflow")

from nemo_gym.cli.main import main
from nemo_gym.config.schema_datasets import UploadJsonlDatasetGitlabConfig
from nemo_gym.data import gitlab

ROWS = b"".join(b'{"responses_create_params": {"input": "What is %d?"}}\n' % number for number in range(9))
CONFIG = """
sums:
  resources_servers:
    sums: {entrypoint: app.py, domain: math}
sums_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: sums}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: train, type: train, jsonl_fpath: data/train.jsonl, license: MIT, %s}
"""
GITLAB = "gitlab_identifier: {dataset_name: collated, version: 0.0.1, artifact_fpath: rows.jsonl}"
HUB = "huggingface_identifier: {repo_id: acme/sums, artifact_fpath: rows.jsonl}"
SOURCE = "source: {type: huggingface, repo_id: acme/sums}"


class Handler(BaseHTTPRequestHandler):
    """The two endpoints of the Hub that a download needs: facts about a file, and its content."""

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    def entry(self, path: str) -> dict[str, Any]:
        digest = hashlib.sha1(b"blob %d\0" % len(ROWS) + ROWS).hexdigest()
        return {"type": "file", "path": path, "size": len(ROWS), "oid": digest}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = "train.jsonl" if b"train.jsonl" in body else "rows.jsonl"
        self.answer(json.dumps([self.entry(path)]).encode())

    def do_GET(self) -> None:
        if self.path.startswith("/api/agent-harnesses"):  # the library's telemetry, unless it has a cached reply
            self.send_error(404)
        elif "/resolve/" in self.path:
            self.answer(ROWS)
        else:
            self.answer(json.dumps([self.entry("train.jsonl")]).encode())


@pytest.fixture
def hub_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield address
    server.shutdown()
    server.server_close()
    thread.join()


def collate(folder: Path, where: str, *words: str) -> int:
    (folder / "sums.yaml").write_text(CONFIG % where)
    flags = ["--config", "sums.yaml", "--mode", "train_preparation", "--output-dir", "out", "--download"]
    return main(["dataset", "collate", *flags, *words])


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore:.*say it with")
@pytest.mark.parametrize("where", [HUB, SOURCE])
def test_rows_come_from_the_hub(tmp_path: Path, hub_address: str, where: str) -> None:
    """A configuration names a file, or leaves the choice of the split to the type of the dataset."""
    assert collate(tmp_path, where) == 0

    assert (tmp_path / "data" / "train.jsonl").read_bytes() == ROWS
    assert len((tmp_path / "out" / "train.jsonl").read_text().splitlines()) == 9


@pytest.mark.filterwarnings("ignore:.*say it with")
def test_rows_come_from_gitlab_if_they_are_only_there_or_it_is_chosen(
    tmp_path: Path, mlflow_server: str, hub_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second run both registries have the rows, and only the chosen one may be used."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    config = UploadJsonlDatasetGitlabConfig(dataset_name="collated", version="0.0.1", input_jsonl_fpath="rows.jsonl")
    gitlab.upload(config, gitlab.Registry(mlflow_server))
    address = f"+mlflow_tracking_uri={mlflow_server}"

    assert collate(tmp_path, GITLAB, address) == 0
    (tmp_path / "data" / "train.jsonl").unlink()
    monkeypatch.setattr("nemo_gym.data.sources.hub.fetch", lambda *a, **k: pytest.fail("the Hub was used"))
    assert collate(tmp_path, f"{GITLAB}, {HUB}", address, "--data-source", "gitlab", "--overwrite-metrics") == 0

    assert (tmp_path / "data" / "train.jsonl").read_bytes() == ROWS
