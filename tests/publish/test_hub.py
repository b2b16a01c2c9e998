"""Datasets on the Hugging Face Hub: the real client library against a small server with its endpoints."""

import base64
import hashlib
import io
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")

import huggingface_hub
import pyarrow
import pyarrow.parquet

from nemo_gym.cli.main import main
from nemo_gym.config.schema_datasets import (
    DownloadJsonlDatasetHuggingFaceConfig,
    JsonlDatasetHuggingFaceIdentifer,
    UploadJsonlDatasetHuggingFaceMaybeDeleteConfig,
)
from nemo_gym.data import file_transfer, hub
from nemo_gym.data.file_transfer import ChecksumMismatch, RegistryError
from nemo_gym.errors import ConfigError

TOKEN = "hf_abcdefghijklmnop"
REPO = "acme/Nemotron-RL-math-sums"
ROWS = b"".join(b'{"responses_create_params":{"input":"%d"},"n":%d}\n' % (n, n) for n in range(50))


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class FakeHub:
    """Repositories in memory, and the faults to inject."""

    url: str = ""
    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Repository -> revision -> path -> content."""
    large: set[str] = field(default_factory=set)
    """Paths that are stored as large files."""
    objects: dict[str, bytes] = field(default_factory=dict)
    collections: dict[str, list[str]] = field(default_factory=lambda: {"acme/rl-data-1234": []})
    seen: list[str] = field(default_factory=list)
    faults: list[tuple[str, Callable[[BaseHTTPRequestHandler], bool]]] = field(default_factory=list)
    """Pattern of "METHOD path" -> function called once instead of the request; it returns False to continue with it."""
    tokens: dict[str, str] = field(default_factory=lambda: {TOKEN: "write", "hf_readonly_token": "read"})
    commits: int = 0
    corrupts_content: bool = False
    """Commits store other bytes than they receive."""
    messages: list[tuple[str, str]] = field(default_factory=list)

    def entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_id(content)}
        if path in self.large:
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 120}
        return entry

    def requests(self, pattern: str) -> list[str]:
        return [line for line in self.seen if re.search(pattern, line)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(split.path), urllib.parse.parse_qs(split.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self.read_chunks()
        line = f"{self.command} {path}"
        self.hub.seen.append(f"{line} {self.headers.get('Range', '')}".rstrip())
        for fault in list(self.hub.faults):
            if re.search(fault[0], line):
                self.hub.faults.remove(fault)
                if fault[1](self):
                    return None
        right = self.hub.tokens.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if right is None and not path.startswith("/lfs/"):
            return self.say(401, {"error": "Invalid user token."})
        if right == "read" and self.command == "POST" and "paths-info" not in path:
            return self.say(403, {"error": "You don't have the rights to create a dataset"})
        for pattern, method in ROUTES:
            match = re.fullmatch(pattern, line)
            if match:
                return method(self, body, query, **match.groupdict())
        self.say(404, {"error": f"no route for {line}"})
        return None

    do_GET = do_POST = do_PUT = do_HEAD = handle_one

    def read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def say(self, status: int, value: Any, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def tree(self, repo: str, revision: str) -> dict[str, bytes] | None:
        if repo not in self.hub.repos:
            self.say(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        if revision not in self.hub.repos[repo]:
            self.say(404, {"error": "Revision not found"}, X_Error_Code="RevisionNotFound")
            return None
        return self.hub.repos[repo][revision]

    def create(self, body: bytes, query: Any) -> None:
        settings = json.loads(body)
        repo = f"{settings['organization']}/{settings['name']}"
        if repo in self.hub.repos:
            return self.say(409, {"error": "You already created this dataset repo", "url": f"{self.hub.url}/{repo}"})
        assert (settings.get("private") is True or settings.get("visibility") == "private") and settings[
            "type"
        ] == "dataset"
        self.hub.repos[repo] = {"main": {".gitattributes": b"*.bin filter=lfs\n"}}
        self.say(200, {"url": f"{self.hub.url}/datasets/{repo}", "id": repo})
        return None

    def branch(self, body: bytes, query: Any, repo: str, name: str) -> None:
        if name in self.hub.repos[repo]:
            return self.say(409, {"error": "exists"})
        self.hub.repos[repo][name] = dict(self.hub.repos[repo]["main"])
        self.say(201, {})
        return None

    def preupload(self, body: bytes, query: Any, repo: str, revision: str) -> None:
        if self.tree(repo, revision) is not None:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"] in self.hub.large else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.say(200, {"files": modes})

    def batch(self, body: bytes, query: Any, repo: str) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            oid = item["oid"]
            actions = {} if oid in self.hub.objects else {"upload": {"href": f"{self.hub.url}/lfs/{oid}"}}
            objects.append({**item, **({"actions": actions} if actions else {})})
        self.say(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def store(self, body: bytes, query: Any, oid: str) -> None:
        self.hub.objects[oid] = body
        self.say(200, {})

    def commit(self, body: bytes, query: Any, repo: str, revision: str) -> None:
        tree = self.tree(repo, revision)
        if tree is None:
            return
        changed = dict(tree)
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "header":
                self.hub.messages.append((entry["value"]["summary"], entry["value"]["description"]))
            elif entry["key"] == "file":
                content = base64.b64decode(entry["value"]["content"])
                changed[entry["value"]["path"]] = content[::-1] if self.hub.corrupts_content else content
            elif entry["key"] == "lfsFile":
                changed[entry["value"]["path"]] = self.hub.objects[entry["value"]["oid"]]
        self.hub.commits += 1
        oid = f"{self.hub.commits:040x}"
        pull = "create_pr" in query
        self.hub.repos[repo][oid] = changed
        self.hub.repos[repo]["refs/pr/1" if pull else revision] = changed
        url = f"{self.hub.url}/datasets/{repo}"
        answer = {"success": True, "commitOid": oid, "commitUrl": f"{url}/commit/{oid}"}
        self.say(200, answer | ({"pullRequestUrl": f"{url}/discussions/1"} if pull else {}))

    def paths_info(self, body: bytes, query: Any, repo: str, revision: str) -> None:
        tree = self.tree(repo, revision)
        if tree is not None:
            paths = urllib.parse.parse_qs(body.decode())["paths"]
            self.say(200, [self.hub.entry(path, tree[path]) for path in paths if path in tree])

    def list_tree(self, body: bytes, query: Any, repo: str, revision: str) -> None:
        tree = self.tree(repo, revision)
        if tree is not None:
            self.say(200, [self.hub.entry(path, content) for path, content in tree.items()])

    def info(self, body: bytes, query: Any, repo: str) -> None:
        if self.tree(repo, "main") is not None:
            siblings = [{"rfilename": path} for path in self.hub.repos[repo]["main"]]
            self.say(200, {"id": repo, "sha": "0" * 40, "siblings": siblings, "private": True, "tags": []})

    def resolve(self, body: bytes, query: Any, repo: str, revision: str, path: str) -> None:
        tree = self.tree(repo, revision)
        if tree is None:
            return None
        if path not in tree:
            return self.say(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        content, status, headers = tree[path], 200, {"ETag": f'"{git_id(tree[path])}"', "X_Repo_Commit": "0" * 40}
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if match:
            start = int(match[1])
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        self.say(status, content, **headers)
        return None

    def collect(self, body: bytes, query: Any, slug: str) -> None:
        items = self.hub.collections.get(slug)
        if items is None:
            return self.say(404, {"error": "Collection not found"})
        item = json.loads(body)["item"]["id"]
        if item in items:
            return self.say(409, {"error": "already in it"})
        items.append(item)
        self.collection(body, query, slug)
        return None

    def collection(self, body: bytes, query: Any, slug: str) -> None:
        items = self.hub.collections[slug]
        listed = [{"_id": "1", "id": name, "type": "dataset", "position": 0} for name in items]
        owner = {"name": "acme", "type": "org"}
        facts = {
            "slug": slug,
            "title": "RL data",
            "owner": owner,
            "items": listed,
            "lastUpdated": "2026-01-01T00:00:00Z",
        }
        self.say(200, facts | {"position": 0, "private": False, "theme": "blue", "upvotes": 0})


_REPO = r"(?P<repo>[^/]+/[^/]+)"
ROUTES: list[tuple[str, Callable[..., None]]] = [
    (r"POST /api/repos/create", Handler.create),
    (rf"POST /api/datasets/{_REPO}/branch/(?P<name>.+)", Handler.branch),
    (rf"POST /api/datasets/{_REPO}/preupload/(?P<revision>.+)", Handler.preupload),
    (rf"POST /api/datasets/{_REPO}/commit/(?P<revision>.+)", Handler.commit),
    (rf"POST /api/datasets/{_REPO}/paths-info/(?P<revision>.+)", Handler.paths_info),
    (rf"GET /api/datasets/{_REPO}/tree/(?P<revision>.+)", Handler.list_tree),
    (rf"GET /api/datasets/{_REPO}", Handler.info),
    (rf"POST /datasets/{_REPO}\.git/info/lfs/objects/batch", Handler.batch),
    (r"PUT /lfs/(?P<oid>\w+)", Handler.store),
    (rf"(?:GET|HEAD) /datasets/{_REPO}/resolve/(?P<revision>[^/]+|refs/pr/1)/(?P<path>.+)", Handler.resolve),
    (r"POST /api/collections/(?P<slug>.+)/items", Handler.collect),
    (r"GET /api/collections/(?P<slug>.+)", Handler.collection),
]


def use_endpoint(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    state = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    use_endpoint(state.url, monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    # The library's own pauses between attempts.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    yield state
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS)
    return path


@pytest.fixture
def server_config(tmp_path: Path) -> Path:
    path = tmp_path / "sums.yaml"
    path.write_text("sums:\n  resources_servers:\n    sums:\n      entrypoint: app.py\n      domain: math\n")
    return path


@pytest.fixture
def config(rows: Path, server_config: Path) -> dict[str, Any]:
    return {
        "hf_token": TOKEN,
        "hf_organization": "acme",
        "hf_collection_name": "RL data",
        "hf_collection_slug": "1234",
        "input_jsonl_fpath": str(rows),
        "resource_config_path": str(server_config),
    }


def publish(fake: FakeHub, config: dict[str, Any], **more: Any) -> hub.PublishedFile:
    parsed = UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(**{**config, **more})
    return hub.upload(parsed)


def fetch(fake: FakeHub, target: Path, **more: Any) -> file_transfer.Digest:
    identifier = JsonlDatasetHuggingFaceIdentifer(repo_id=REPO, artifact_fpath=more.pop("path", "train.jsonl"))
    return hub.fetch(identifier, target, token=TOKEN, **more)


def with_repo(fake: FakeHub, **files: bytes) -> None:
    fake.repos[REPO] = {"main": {name.replace("__", "/").replace("_dot_", "."): data for name, data in files.items()}}


def status(code: int, **headers: str) -> Callable[[Any], bool]:
    def answer(handler: Any) -> bool:
        handler.say(code, {"error": f"trouble with {handler.headers.get('Authorization')}"}, **headers)
        return True

    return answer


def corrupt_commit(handler: Any) -> bool:
    handler.hub.corrupts_content = True
    return False


def send_wrong_content(handler: Any) -> bool:
    handler.say(200, ROWS.replace(b"7", b"8"))
    return True


def cut_after(count: int) -> Callable[[Any], bool]:
    """Return a fault that announces the whole file and breaks off."""

    def answer(handler: Any) -> bool:
        content = ROWS[int((re.findall(r"\d+", handler.headers.get("Range") or "0"))[0]) :]
        handler.send_response(206 if handler.headers.get("Range") else 200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:count])
        handler.wfile.flush()
        handler.close_connection = True
        return True

    return answer


def test_an_upload_creates_sends_verifies_and_collects(fake: FakeHub, config: dict[str, Any]) -> None:
    """The order matters: a collection must never contain an unverified dataset."""
    result = publish(fake, config)

    assert result.repo == REPO and result.path == "train.jsonl" and result.changed
    assert fake.repos[REPO]["main"]["train.jsonl"] == ROWS
    assert fake.collections["acme/rl-data-1234"] == [REPO]
    assert result.digest.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert fake.seen.index(f"POST /api/datasets/{REPO}/paths-info/{result.revision}") > 0, "not verified"


@pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload")  # between the library and its HTTP package
def test_a_large_file_is_verified_by_its_sha256(fake: FakeHub, config: dict[str, Any]) -> None:
    """The Hub stores large files in LFS and reports their SHA-256, so they are not downloaded to verify them."""
    fake.large.add("train.jsonl")

    result = publish(fake, config)

    assert fake.objects == {result.digest.sha256: ROWS}
    assert not fake.requests("GET /datasets/.*/resolve")


def test_an_existing_file_is_not_uploaded_again(fake: FakeHub, config: dict[str, Any]) -> None:
    """Repeating a command after an interruption should cost nothing."""
    publish(fake, config)
    before = fake.commits

    second = publish(fake, config)

    assert not second.changed and fake.commits == before


def test_name_split_branch_message_and_pull_request_are_used(fake: FakeHub, config: dict[str, Any]) -> None:
    """A setting without effect would publish to the wrong place."""
    named = {"dataset_name": "other", "hf_dataset_prefix": "Pre", "split": "validation"}
    commit = {"commit_message": "m", "commit_description": "d"}
    on_branch = publish(fake, config, **named, **commit, revision="v2")
    pull = publish(fake, {**config, "dataset_name": "pulled"}, create_pr=True)

    assert on_branch.repo == "acme/Pre-math-other"
    assert fake.messages == [("m", "d"), ("Add train.jsonl", "")]
    assert fake.repos["acme/Pre-math-other"]["v2"]["validation.jsonl"] == ROWS
    assert "validation.jsonl" not in fake.repos["acme/Pre-math-other"]["main"]
    assert pull.pull_request and "train.jsonl" not in fake.repos["acme/Nemotron-RL-math-pulled"]["main"]


def test_invalid_rows_are_refused_before_any_request(fake: FakeHub, config: dict[str, Any], rows: Path) -> None:
    """A broken dataset on the Hub breaks the work of all its users."""
    rows.write_bytes(b'{"responses_create_params": {}}\n{"question": 1}\nnot json\n{"x": 1}\n[1]\n')

    with pytest.raises(ConfigError) as refused:
        publish(fake, config)

    assert "lines 2, 4: responses_create_params: the field is missing" in str(refused.value)
    assert "line 3: the line is not JSON" in str(refused.value) and "line 5: the line is a list" in str(refused.value)
    assert not fake.seen


def test_rows_of_other_splits_need_no_parameters(fake: FakeHub, config: dict[str, Any], rows: Path) -> None:
    """The rows of a benchmark get their input from a prompt."""
    rows.write_bytes(b'{"question": 1}\n')

    assert publish(fake, config, split="test").path == "test.jsonl"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"input_jsonl_fpath": "nowhere.jsonl"}, "file not found: 'nowhere.jsonl'"),
        ({"resource_config_path": "nowhere.yaml"}, "resource_config_path 'nowhere.yaml' does not exist"),
        ({"dataset_name": "two words"}, "is not valid in a repository name"),
    ],
)
def test_a_wrong_configuration_is_refused_before_any_request(
    fake: FakeHub, config: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    """Typing mistakes should not need the network."""
    with pytest.raises(ConfigError, match=message):
        publish(fake, config, **more)

    assert not fake.seen


@pytest.mark.parametrize(
    ("token", "message"),
    [("hf_wrong_wrong_wrong", r"rejected the token"), ("hf_readonly_token", r"lacks the permission")],
)
def test_a_refused_token_is_reported_but_not_shown(
    fake: FakeHub, config: dict[str, Any], token: str, message: str
) -> None:
    """401 and 403 are the first errors new users meet."""
    with pytest.raises(RegistryError, match=message) as refused:
        publish(fake, config, hf_token=token)

    assert token not in str(refused.value) and refused.value.fix
    assert refused.value.exit_status == 3


def test_a_token_in_an_error_message_is_removed(fake: FakeHub, config: dict[str, Any]) -> None:
    """Servers and proxies repeat request headers in their errors, and logs are public."""
    fake.faults += [("POST /api/repos/create", status(418))]

    with pytest.raises(RegistryError) as refused:
        publish(fake, config)

    assert "418" in str(refused.value) and TOKEN not in str(refused.value)


def test_short_outages_are_retried_and_long_ones_end_the_command(fake: FakeHub, config: dict[str, Any]) -> None:
    """A single 503 is normal; an hour of them must not block the command."""
    for call in ("POST /api/repos/create", "POST .*/preupload", "POST .*/paths-info", "POST /api/collections"):
        fake.faults += [(call, status(503))] * 2
    publish(fake, config)
    assert not fake.faults

    fake.faults += [("GET .*/tree/", status(503))] * 50
    with pytest.raises(RegistryError, match="503"):
        hub.download(
            DownloadJsonlDatasetHuggingFaceConfig(repo_id=REPO, hf_token=TOKEN, output_dirpath="x"),
        )

    assert len(fake.requests("GET .*/tree/")) <= 6


def test_a_long_retry_after_ends_the_command(fake: FakeHub, config: dict[str, Any]) -> None:
    """The library would sleep for an hour."""
    fake.faults += [("POST .*/preupload", status(429, Retry_After="3600"))]

    with pytest.raises(RegistryError, match="retry in 3600 s"):
        publish(fake, config)


def test_the_librarys_client_has_a_timeout(fake: FakeHub) -> None:
    """By default it waits without limit."""
    hub.HubDataset(REPO, TOKEN)

    assert huggingface_hub.get_session().timeout.read == file_transfer.TIMEOUT


def test_an_unreachable_hub_is_one_clear_error(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of the HTTP library would hide the cause."""
    parsed = UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(**config)
    use_endpoint("http://127.0.0.1:9", monkeypatch)

    with pytest.raises(RegistryError, match="cannot be reached"):
        hub.upload(parsed)


def test_a_corrupt_copy_is_an_error(fake: FakeHub, config: dict[str, Any]) -> None:
    """An upload succeeds only if the Hub's checksum is that of the file."""
    fake.faults += [("POST .*/commit/", corrupt_commit)]

    with pytest.raises(ChecksumMismatch, match="does not have the checksum"):
        publish(fake, config)

    assert fake.collections["acme/rl-data-1234"] == []


def test_a_missing_collection_is_reported_after_the_upload(fake: FakeHub, config: dict[str, Any]) -> None:
    """The upload is not lost; only the collection has to be corrected."""
    with pytest.raises(RegistryError, match="collection acme/rl-data-9"):
        publish(fake, config, hf_collection_slug="9")

    assert fake.repos[REPO]["main"]["train.jsonl"] == ROWS


def test_a_download_equals_the_upload(fake: FakeHub, config: dict[str, Any], tmp_path: Path) -> None:
    """Not a byte may change on the way."""
    publish(fake, config)

    digest = fetch(fake, tmp_path / "deep" / "train.jsonl")

    assert (tmp_path / "deep" / "train.jsonl").read_bytes() == ROWS
    assert digest.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["train.jsonl"]


def test_an_interrupted_download_is_resumed(fake: FakeHub, tmp_path: Path) -> None:
    """Gigabytes that have arrived must not be sent again."""
    with_repo(fake, train_dot_jsonl=ROWS)
    fake.faults += [("GET .*/resolve", cut_after(700))]

    fetch(fake, tmp_path / "train.jsonl")

    assert (tmp_path / "train.jsonl").read_bytes() == ROWS
    assert fake.requests("bytes=700-")


def test_the_next_command_resumes_an_abandoned_download(fake: FakeHub, tmp_path: Path) -> None:
    """An outage must not cost the gigabytes before it."""
    with_repo(fake, train_dot_jsonl=ROWS)
    fake.faults += [("GET .*/resolve", cut_after(100))] * file_transfer.ATTEMPTS
    with pytest.raises(RegistryError, match="gave up after 5 attempts") as given_up:
        fetch(fake, tmp_path / "train.jsonl")
    assert "run the same command again" in str(given_up.value)
    assert not (tmp_path / "train.jsonl").exists()

    fetch(fake, tmp_path / "train.jsonl")

    assert (tmp_path / "train.jsonl").read_bytes() == ROWS
    assert fake.requests("bytes=500-")


def test_a_hub_that_ignores_ranges_is_read_from_the_start(fake: FakeHub, tmp_path: Path) -> None:
    """Caches before the Hub may answer a range request with the whole file."""

    def whole(handler: Any) -> bool:
        handler.say(200, ROWS)
        return True

    with_repo(fake, train_dot_jsonl=ROWS)
    fake.faults += [("GET .*/resolve", cut_after(700)), ("GET .*/resolve", whole)]

    fetch(fake, tmp_path / "train.jsonl")

    assert (tmp_path / "train.jsonl").read_bytes() == ROWS


@pytest.mark.parametrize("large", [False, True])
def test_a_corrupt_download_is_removed(fake: FakeHub, tmp_path: Path, large: bool) -> None:
    """The next attempt must not continue corrupt content, and the earlier file must survive."""
    with_repo(fake, train_dot_jsonl=ROWS)
    fake.large |= {"train.jsonl"} if large else set()
    (tmp_path / "train.jsonl").write_bytes(b"earlier")
    fake.faults += [("GET .*/resolve", send_wrong_content)]

    with pytest.raises(ChecksumMismatch, match="expected"):
        fetch(fake, tmp_path / "train.jsonl")

    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
    assert (tmp_path / "train.jsonl").read_bytes() == b"earlier"


def test_an_existing_file_is_not_downloaded_again(fake: FakeHub, tmp_path: Path) -> None:
    """Commands are repeated, and datasets are large."""
    with_repo(fake, train_dot_jsonl=ROWS)
    fetch(fake, tmp_path / "train.jsonl")
    before = len(fake.requests("GET .*/resolve"))

    fetch(fake, tmp_path / "train.jsonl")

    assert len(fake.requests("GET .*/resolve")) == before


def test_two_downloads_of_one_file_do_not_mix(fake: FakeHub, tmp_path: Path) -> None:
    """Two processes that write one file would corrupt it."""
    with_repo(fake, train_dot_jsonl=ROWS)
    problems = []

    def meanwhile(done: int, total: int | None) -> None:
        if not problems:
            with pytest.raises(RegistryError) as refused:
                fetch(fake, tmp_path / "train.jsonl")
            problems.append(str(refused.value))

    fetch(fake, tmp_path / "train.jsonl", meter=meanwhile)

    assert "another process is downloading" in problems[0]
    assert (tmp_path / "train.jsonl").read_bytes() == ROWS


def test_missing_files_revisions_and_datasets_are_named(fake: FakeHub, tmp_path: Path) -> None:
    """The existing files help the user more than a 404."""
    with_repo(fake, train_dot_jsonl=ROWS)

    with pytest.raises(RegistryError, match=r"no file 'trian.jsonl'; it has: train.jsonl"):
        fetch(fake, tmp_path / "x", path="trian.jsonl")
    with pytest.raises(RegistryError, match="unknown revision"):
        fetch(fake, tmp_path / "x", revision="v9")
    fake.repos.clear()
    with pytest.raises(RegistryError, match="does not exist or is private"):
        fetch(fake, tmp_path / "x")


def parquet(path: Path, rows: list[dict[str, Any]]) -> bytes:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path.read_bytes()


def test_all_splits_become_jsonl(fake: FakeHub, tmp_path: Path) -> None:
    """Most datasets on the Hub are Parquet files under `data/`, and every command here reads JSONL."""
    with_repo(
        fake,
        README_dot_md=b"hello",
        train_dot_jsonl=ROWS,
        **{
            "data__test-00000-of-00002_dot_parquet": parquet(tmp_path / "a", [{"q": "1"}, {"q": "2"}]),
            "data__test-00001-of-00002_dot_parquet": parquet(tmp_path / "b", [{"q": "3"}]),
        },
    )
    out = tmp_path / "out"
    config = DownloadJsonlDatasetHuggingFaceConfig(repo_id=REPO, hf_token=TOKEN, output_dirpath=str(out))

    written = hub.download(config)

    assert set(written) == {out / "train.jsonl", out / "test.jsonl"}
    assert (out / "train.jsonl").read_bytes() == ROWS
    assert (out / "test.jsonl").read_bytes() == b'{"q":"1"}\n{"q":"2"}\n{"q":"3"}\n'
    assert sorted(path.name for path in out.iterdir()) == ["test.jsonl", "train.jsonl"]


def test_an_ambiguous_split_is_refused(fake: FakeHub, tmp_path: Path) -> None:
    """A guess would train on the wrong rows."""
    with_repo(fake, en__train_dot_jsonl=ROWS, fr__train_dot_jsonl=ROWS)

    with pytest.raises(RegistryError, match=r"could be the train split: en/train.jsonl, fr/train.jsonl"):
        fetch(fake, tmp_path / "x", path=None)


def test_a_dataset_without_the_split_lists_its_files(fake: FakeHub, tmp_path: Path) -> None:
    """The user can then name a file."""
    with_repo(fake, notes_dot_csv=b"a,b")

    with pytest.raises(RegistryError, match=r"for the split 'test'; the dataset has: notes.csv"):
        fetch(fake, tmp_path / "x", path=None, split="test")


def test_progress_is_reported_up_to_the_whole_file(fake: FakeHub, tmp_path: Path) -> None:
    """A bar that stops at 90 % looks like a failure."""
    with_repo(fake, train_dot_jsonl=ROWS)
    reports: list[tuple[int, int | None]] = []

    fetch(fake, tmp_path / "train.jsonl", meter=lambda done, total: reports.append((done, total)))

    assert reports[0] == (0, len(ROWS)) and reports[-1] == (len(ROWS), len(ROWS))


@pytest.fixture
def keys(fake: FakeHub, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the settings as overrides and make the commands use the fake Hub."""
    monkeypatch.chdir(tmp_path)
    return [f"+{key}={json.dumps(value)}" for key, value in config.items() if key != "input_jsonl_fpath"]


def test_the_upload_command_prints_one_object(fake: FakeHub, keys: list[str], rows: Path, capsys: Any) -> None:
    """Scripts parse stdout, so it must hold one object and no token."""
    code = main(["dataset", "upload", "-i", str(rows), "--name", "sums", "--split", "validation", "--json", *keys])

    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert code == 0 and result["repo_id"] == REPO and result["path"] == "validation.jsonl" and result["uploaded"]
    assert result["sha256"] == hashlib.sha256(ROWS).hexdigest() and result["deleted_from_gitlab"] is None
    assert TOKEN not in captured.out + captured.err


def test_the_download_command_writes_every_split(
    fake: FakeHub, keys: list[str], rows: Path, tmp_path: Path, capsys: Any
) -> None:
    """Without --split, users expect the whole dataset."""
    main(["dataset", "upload", "-i", str(rows), *keys])
    main(["dataset", "upload", "-i", str(rows), "--split", "test", *keys])
    capsys.readouterr()

    code = main(["dataset", "download", "--repo-id", REPO, "--output-dir", "data", f"+hf_token={TOKEN}", "--json"])

    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [file["path"] for file in result["files"]] == ["data/train.jsonl", "data/test.jsonl"]
    assert (tmp_path / "data" / "test.jsonl").read_bytes() == ROWS


def test_a_token_in_the_environment_is_used(
    fake: FakeHub, keys: list[str], rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """All tools of the Hub read HF_TOKEN."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    assert main(["dataset", "upload", "-i", str(rows), *(key for key in keys if "hf_token" not in key)]) == 0


def test_a_wrong_token_is_status_three_and_one_clear_message(
    fake: FakeHub, keys: list[str], rows: Path, capsys: Any
) -> None:
    """Scripts distinguish registry problems by the exit status."""
    wrong = [key.replace(TOKEN, "hf_wrongwrongwrong") for key in keys]

    code = main(["dataset", "upload", "-i", str(rows), *wrong])

    captured = capsys.readouterr()
    assert code == 3 and not captured.out
    assert "rejected the token" in captured.err and "hf_wrong" not in captured.err and "Traceback" not in captured.err


@pytest.fixture
def registry(mlflow_server: str, rows: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a real MLflow registry with a dataset `sums`."""
    from nemo_gym.config.schema_datasets import UploadJsonlDatasetGitlabConfig
    from nemo_gym.data import gitlab
    from nemo_gym.data.gitlab import Registry

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    for version in ("0.0.1", "0.0.2"):
        stored = UploadJsonlDatasetGitlabConfig(dataset_name="sums", version=version, input_jsonl_fpath=str(rows))
        gitlab.upload(stored, Registry(mlflow_server))
    registry = Registry(mlflow_server)
    yield registry
    if registry.has("sums"):
        registry.delete("sums")


@pytest.fixture
def both(keys: list[str], mlflow_server: str) -> list[str]:
    return [*keys, f"+mlflow_tracking_uri={mlflow_server}"]


def test_migrating_uploads_verifies_and_deletes(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any
) -> None:
    """After a migration only the Hub may have the dataset."""
    code = main(["dataset", "migrate", "-i", str(rows), "--name", "sums", "--yes", "--json", *both])

    result = json.loads(capsys.readouterr().out)
    assert code == 0 and result["deleted_from_gitlab"] == "sums" and result["repo_id"] == REPO
    assert fake.repos[REPO]["main"]["train.jsonl"] == ROWS
    assert not registry.has("sums")


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        ("POST .*/commit/", status(400)),
        ("POST .*/preupload/", status(403)),
        ("POST .*/commit/", corrupt_commit),
        ("POST /api/collections/", status(404)),
    ],
)
def test_an_error_before_the_copy_is_verified_deletes_nothing(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any, pattern: str, answer: Any
) -> None:
    """At every moment of a migration, one registry must have a complete copy."""
    fake.faults += [(pattern, answer)]

    code = main(["dataset", "migrate", "-i", str(rows), "--name", "sums", "--yes", *both])

    assert code in (1, 3)
    assert registry.versions("sums") == ["0.0.1", "0.0.2"]


def test_nothing_is_deleted_without_a_confirmation(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal the command needs --yes; on a terminal, no reply means no."""
    migrate = ["dataset", "migrate", "-i", str(rows), "--name", "sums", *both]
    delete_after = ["dataset", "upload", "-i", str(rows), "--name", "sums", "+delete_from_gitlab=true", *both]
    remove = ["dataset", "rm", "--name", "sums", *both]
    monkeypatch.setattr("sys.stdin", io.StringIO())

    assert [main(words) for words in (migrate, delete_after, remove)] == [2, 2, 2]
    assert "try: --yes" in capsys.readouterr().err

    for typed in ("", "n\n", "yes please\n"):
        stdin = io.StringIO(typed)
        stdin.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(remove) == 1

    prompts = capsys.readouterr().err
    assert "Delete 'sums' with all its versions, among them 0.0.1, 0.0.2, from GitLab? [y/N]" in prompts
    assert not fake.commits and registry.versions("sums") == ["0.0.1", "0.0.2"]


def test_a_typed_yes_deletes(both: list[str], registry: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confirmation must have an effect."""
    stdin = io.StringIO("y\n")
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)

    assert main(["dataset", "rm", "--name", "sums", *both]) == 0
    assert not registry.has("sums")


def test_an_upload_can_delete_the_other_copy_afterwards(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any
) -> None:
    """Existing configurations set `delete_from_gitlab`."""
    words = ["dataset", "upload", "-i", str(rows), "--name", "sums", "+delete_from_gitlab=true", "--yes", *both]

    assert main(words) == 0
    assert "deleted from GitLab: sums" in capsys.readouterr().out
    assert not registry.has("sums")


def test_migrating_a_missing_dataset_uploads_nothing(
    fake: FakeHub, both: list[str], rows: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name must be noticed before the upload."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")

    code = main(["dataset", "migrate", "-i", str(rows), "--name", "nowhere", "--yes", *both])

    assert code == 3 and not fake.seen
    assert "unknown dataset 'nowhere' in the GitLab registry" in capsys.readouterr().err
    assert main(["dataset", "rm", "--name", "nowhere", "--yes", *both]) == 3


def test_migrating_refuses_to_keep_the_other_copy(both: list[str], rows: Path, capsys: Any) -> None:
    """A key that the command ignores would surprise the user."""
    code = main(["dataset", "migrate", "-i", str(rows), "+delete_from_gitlab=false", "--yes", *both])

    assert code == 2 and "always deletes" in capsys.readouterr().err


def test_the_commands_upload_to_and_download_from_gitlab(
    keys: list[str], mlflow_server: str, rows: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide shows these two commands."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    where = [
        "--storage",
        "gitlab",
        "--name",
        "by-command",
        "--revision",
        "0.0.1",
        f"+mlflow_tracking_uri={mlflow_server}",
    ]

    assert main(["dataset", "upload", "-i", str(rows), *where]) == 0
    assert main(["dataset", "download", "--artifact", "rows.jsonl", "-o", "got.jsonl", *where]) == 0

    assert (tmp_path / "got.jsonl").read_bytes() == ROWS
    assert "uploaded and verified" in capsys.readouterr().out


def test_the_public_names_do_what_the_commands_do(
    fake: FakeHub,
    keys: list[str],
    config: dict[str, Any],
    mlflow_server: str,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scripts import `hf_utils`, `gitlab_utils` and `dataset_orchestrator`."""
    from omegaconf import OmegaConf

    from nemo_gym import config_types, dataset_orchestrator, gitlab_utils, global_config, hf_utils

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    settings = {"mlflow_tracking_uri": mlflow_server, "mlflow_tracking_token": "token-of-gitlab"}
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create(settings))
    names = {"dataset_name": "by-name", "version": "1.0.0"}

    stored = gitlab_utils.upload_jsonl_dataset(
        config_types.UploadJsonlDatasetGitlabConfig(**names, input_jsonl_fpath=str(rows))
    )
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "token-of-gitlab"
    got = gitlab_utils.download_jsonl_dataset(
        config_types.DownloadJsonlDatasetGitlabConfig(
            **names, artifact_fpath="rows.jsonl", output_fpath=str(tmp_path / "a.jsonl")
        )
    )
    moved = dataset_orchestrator.migrate_jsonl_dataset(
        config_types.UploadJsonlDatasetHuggingFaceConfig(**config, dataset_name="by-name")
    )
    here = config_types.DownloadJsonlDatasetHuggingFaceConfig(
        repo_id=moved.repo, hf_token=TOKEN, split="train", output_fpath=str(tmp_path / "b.jsonl")
    )
    (back,) = hf_utils.download_jsonl_dataset(here)

    assert stored.changed and got.read_bytes() == back.read_bytes() == ROWS
    assert gitlab_utils.create_mlflow_client().search_registered_models("name='by-name'") == []
