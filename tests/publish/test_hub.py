"""Datasets to and from the Hugging Face Hub: the real client library against a small server with its endpoints."""

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
from nemo_gym.data import hub, hub_client, hub_transfer
from nemo_gym.data.hub_transfer import ChecksumMismatch, RegistryError
from nemo_gym.errors import ConfigError

TOKEN = "hf_abcdefghijklmnop"
REPO = "acme/Nemotron-RL-math-sums"
ROWS = b"".join(b'{"responses_create_params":{"input":"%d"},"n":%d}\n' % (n, n) for n in range(50))


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class FakeHub:
    """Repositories in memory, and what shall go wrong."""

    url: str = ""
    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Repository -> revision -> path -> content."""
    large: set[str] = field(default_factory=set)
    """Paths that are stored as large files."""
    objects: dict[str, bytes] = field(default_factory=dict)
    collections: dict[str, list[str]] = field(default_factory=lambda: {"acme/rl-data-1234": []})
    seen: list[str] = field(default_factory=list)
    faults: list[tuple[str, Callable[[BaseHTTPRequestHandler], bool]]] = field(default_factory=list)
    """Pattern of "METHOD path" -> what happens instead, once; it returns False to let the request through after all."""
    tokens: dict[str, str] = field(default_factory=lambda: {TOKEN: "write", "hf_readonly_token": "read"})
    commits: int = 0
    messages: list[tuple[str, str]] = field(default_factory=list)

    def entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_id(content)}
        if path in self.large:
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 120}
        return entry

    def asked(self, pattern: str) -> list[str]:
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
            found = re.fullmatch(pattern, line)
            if found:
                return method(self, body, query, **found.groupdict())
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
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.hub.repos:
            return self.say(409, {"error": "You already created this dataset repo", "url": f"{self.hub.url}/{repo}"})
        assert (asked.get("private") is True or asked.get("visibility") == "private") and asked["type"] == "dataset"
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
        for wanted in json.loads(body)["objects"]:
            oid = wanted["oid"]
            actions = {} if oid in self.hub.objects else {"upload": {"href": f"{self.hub.url}/lfs/{oid}"}}
            objects.append({**wanted, **({"actions": actions} if actions else {})})
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
            said = json.loads(line)
            if said["key"] == "header":
                self.hub.messages.append((said["value"]["summary"], said["value"]["description"]))
            elif said["key"] == "file":
                changed[said["value"]["path"]] = base64.b64decode(said["value"]["content"])
            elif said["key"] == "lfsFile":
                changed[said["value"]["path"]] = self.hub.objects[said["value"]["oid"]]
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
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if found:
            start = int(found[1])
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
        told = {
            "slug": slug,
            "title": "RL data",
            "owner": owner,
            "items": listed,
            "lastUpdated": "2026-01-01T00:00:00Z",
        }
        self.say(200, told | {"position": 0, "private": False, "theme": "blue", "upvotes": 0})


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


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    state = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
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


def published(fake: FakeHub, config: dict[str, Any], **more: Any) -> hub.Published:
    parsed = UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(**{**config, **more})
    return hub.upload(parsed, endpoint=fake.url, pause=0)


def fetched(fake: FakeHub, target: Path, **more: Any) -> hub_transfer.Digest:
    identifier = JsonlDatasetHuggingFaceIdentifer(repo_id=REPO, artifact_fpath=more.pop("path", "train.jsonl"))
    return hub.fetch(identifier, target, token=TOKEN, endpoint=fake.url, pause=0, **more)


def with_repo(fake: FakeHub, **files: bytes) -> None:
    fake.repos[REPO] = {"main": {name.replace("__", "/").replace("_dot_", "."): data for name, data in files.items()}}


def status(code: int, **headers: str) -> Callable[[Any], bool]:
    def answer(handler: Any) -> bool:
        handler.say(code, {"error": f"trouble, said to {handler.headers.get('Authorization')}"}, **headers)
        return True

    return answer


def cut_after(count: int) -> Callable[[Any], bool]:
    """Promise the whole file and break off."""

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


def test_an_upload_creates_names_sends_verifies_and_collects(fake: FakeHub, config: dict[str, Any]) -> None:
    """The whole path of `gym dataset upload`, in the order that leaves nothing half done."""
    result = published(fake, config)

    assert result.repo == REPO and result.path == "train.jsonl" and result.changed
    assert fake.repos[REPO]["main"]["train.jsonl"] == ROWS
    assert fake.collections["acme/rl-data-1234"] == [REPO]
    assert result.digest.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert fake.asked(rf"GET /datasets/{REPO}/resolve/{result.revision}"), "what the Hub hands out was not summed"


@pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload")  # the library's own business with its HTTP package
def test_a_large_file_takes_the_other_way_and_is_checked_by_its_sha256(fake: FakeHub, config: dict[str, Any]) -> None:
    """Beyond a few megabytes the Hub stores files elsewhere; it knows their SHA-256 and need not send them back."""
    fake.large.add("train.jsonl")

    result = published(fake, config)

    assert fake.objects == {result.digest.sha256: ROWS}
    assert not fake.asked("GET /datasets/.*/resolve")


def test_what_the_hub_has_is_not_sent_again(fake: FakeHub, config: dict[str, Any]) -> None:
    """After an interruption the same command is typed again; it should cost nothing."""
    published(fake, config)
    before = fake.commits

    again = published(fake, config)

    assert not again.changed and fake.commits == before


def test_name_split_branch_message_and_pull_request_go_where_they_belong(fake: FakeHub, config: dict[str, Any]) -> None:
    """Every field of the configuration has an effect."""
    named = {"dataset_name": "other", "hf_dataset_prefix": "Pre", "split": "validation"}
    told = {"commit_message": "m", "commit_description": "d"}
    on_branch = published(fake, config, **named, **told, revision="v2")
    pull = published(fake, {**config, "dataset_name": "pulled"}, create_pr=True)

    assert on_branch.repo == "acme/Pre-math-other"
    assert fake.messages == [("m", "d"), ("Add train.jsonl", "")]
    assert fake.repos["acme/Pre-math-other"]["v2"]["validation.jsonl"] == ROWS
    assert "validation.jsonl" not in fake.repos["acme/Pre-math-other"]["main"]
    assert pull.pull_request and "train.jsonl" not in fake.repos["acme/Nemotron-RL-math-pulled"]["main"]


def test_rows_that_cannot_be_trained_on_are_refused_before_anything_is_sent(
    fake: FakeHub, config: dict[str, Any], rows: Path
) -> None:
    """A broken dataset on the Hub is everybody's problem."""
    rows.write_bytes(b'{"responses_create_params": {}}\n{"question": 1}\nnot json\n{"x": 1}\n[1]\n')

    with pytest.raises(ConfigError) as refused:
        published(fake, config)

    assert "lines 2, 4: responses_create_params is missing" in str(refused.value)
    assert "line 3: not JSON" in str(refused.value) and "line 5: not a JSON object" in str(refused.value)
    assert not fake.seen


def test_rows_of_other_splits_need_no_parameters(fake: FakeHub, config: dict[str, Any], rows: Path) -> None:
    rows.write_bytes(b'{"question": 1}\n')

    assert published(fake, config, split="test").path == "test.jsonl"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"input_jsonl_fpath": "nowhere.jsonl"}, "no file 'nowhere.jsonl'"),
        ({"resource_config_path": "nowhere.yaml"}, "no file 'nowhere.yaml'"),
        ({"dataset_name": "two words"}, "cannot be part of a repository's name"),
    ],
)
def test_a_wrong_configuration_is_told_before_anything_is_sent(
    fake: FakeHub, config: dict[str, Any], more: dict[str, Any], told: str
) -> None:
    """Nobody should wait for the network to learn of a typing mistake."""
    with pytest.raises(ConfigError, match=told):
        published(fake, config, **more)

    assert not fake.seen


@pytest.mark.parametrize(
    ("token", "told"), [("hf_wrong_wrong_wrong", r"does not accept the token"), ("hf_readonly_token", r"no right")]
)
def test_a_refused_token_is_named_as_the_problem_and_not_shown(
    fake: FakeHub, config: dict[str, Any], token: str, told: str
) -> None:
    """401 and 403 are the two errors everybody meets first."""
    with pytest.raises(RegistryError, match=told) as refused:
        published(fake, config, hf_token=token)

    assert token not in str(refused.value) and refused.value.fix
    assert refused.value.exit_status == 3


def test_an_error_that_repeats_the_token_is_shown_without_it(fake: FakeHub, config: dict[str, Any]) -> None:
    """Servers and proxies echo headers; logs are public."""
    fake.faults += [("POST /api/repos/create", status(418))]

    with pytest.raises(RegistryError) as refused:
        published(fake, config)

    assert "418" in str(refused.value) and TOKEN not in str(refused.value)


def test_a_hub_that_stumbles_is_asked_again_and_one_that_lies_down_is_not(
    fake: FakeHub, config: dict[str, Any]
) -> None:
    """A 503 now and then is normal; an hour of them is an outage, and the command ends."""
    for call in ("POST /api/repos/create", "POST .*/preupload", "POST .*/paths-info", "POST /api/collections"):
        fake.faults += [(call, status(503))] * 2
    published(fake, config)
    assert not fake.faults

    fake.faults += [("GET .*/tree/", status(503))] * 50
    with pytest.raises(RegistryError, match="503"):
        hub.download(
            DownloadJsonlDatasetHuggingFaceConfig(repo_id=REPO, hf_token=TOKEN, output_dirpath="x"),
            endpoint=fake.url,
            pause=0,
        )

    assert len(fake.asked("GET .*/tree/")) <= 6


def test_being_asked_to_wait_for_an_hour_ends_the_command(fake: FakeHub, config: dict[str, Any]) -> None:
    """The library would sleep for as long as the Hub likes."""
    fake.faults += [("POST .*/preupload", status(429, Retry_After="3600"))]

    with pytest.raises(RegistryError, match="come back in 3600 s"):
        published(fake, config)


def test_the_librarys_client_waits_with_a_limit(fake: FakeHub) -> None:
    """Out of the box it waits for ever."""
    hub_client.Hub(TOKEN, endpoint=fake.url)

    assert huggingface_hub.get_session().timeout.read == hub_transfer.PATIENCE


def test_a_hub_that_is_not_there_is_one_clear_error(fake: FakeHub, config: dict[str, Any]) -> None:
    parsed = UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(**config)

    with pytest.raises(RegistryError, match="cannot be reached"):
        hub.upload(parsed, endpoint="http://127.0.0.1:9", pause=0)


def test_a_copy_with_other_content_is_an_error(fake: FakeHub, config: dict[str, Any]) -> None:
    """The upload is over only when the Hub's copy has our checksum."""

    def spoil(handler: Any) -> bool:
        handler.say(200, ROWS.replace(b"7", b"8"))
        return True

    fake.faults += [("GET /datasets/.*/resolve", spoil)]

    with pytest.raises(ChecksumMismatch, match="does not have the SHA-256"):
        published(fake, config)

    assert fake.collections["acme/rl-data-1234"] == []


def test_a_collection_that_is_not_there_is_told_after_the_upload(fake: FakeHub, config: dict[str, Any]) -> None:
    with pytest.raises(RegistryError, match="collection acme/rl-data-9"):
        published(fake, config, hf_collection_slug="9")

    assert fake.repos[REPO]["main"]["train.jsonl"] == ROWS


def test_a_download_is_what_was_uploaded(fake: FakeHub, config: dict[str, Any], tmp_path: Path) -> None:
    published(fake, config)

    digest = fetched(fake, tmp_path / "deep" / "train.jsonl")

    assert (tmp_path / "deep" / "train.jsonl").read_bytes() == ROWS
    assert digest.sha256 == hashlib.sha256(ROWS).hexdigest()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["train.jsonl"]


def test_a_broken_download_continues_where_it_stopped(fake: FakeHub, tmp_path: Path) -> None:
    """The second request asks only for what is missing."""
    with_repo(fake, train_dot_jsonl=ROWS)
    fake.faults += [("GET .*/resolve", cut_after(700))]

    fetched(fake, tmp_path / "train.jsonl")

    assert (tmp_path / "train.jsonl").read_bytes() == ROWS
    assert fake.asked("bytes=700-")


def test_a_download_that_was_given_up_continues_in_the_next_command(fake: FakeHub, tmp_path: Path) -> None:
    """A train passes a tunnel; the gigabytes before it are kept."""
    with_repo(fake, train_dot_jsonl=ROWS)
    fake.faults += [("GET .*/resolve", cut_after(100))] * hub_transfer.ATTEMPTS
    with pytest.raises(RegistryError, match="gave up after 5 attempts") as given_up:
        fetched(fake, tmp_path / "train.jsonl")
    assert "continues where it stopped" in str(given_up.value)
    assert not (tmp_path / "train.jsonl").exists()

    fetched(fake, tmp_path / "train.jsonl")

    assert (tmp_path / "train.jsonl").read_bytes() == ROWS
    assert fake.asked("bytes=500-")


def test_a_hub_that_ignores_ranges_is_read_from_the_start(fake: FakeHub, tmp_path: Path) -> None:
    def whole(handler: Any) -> bool:
        handler.say(200, ROWS)
        return True

    with_repo(fake, train_dot_jsonl=ROWS)
    fake.faults += [("GET .*/resolve", cut_after(700)), ("GET .*/resolve", whole)]

    fetched(fake, tmp_path / "train.jsonl")

    assert (tmp_path / "train.jsonl").read_bytes() == ROWS


@pytest.mark.parametrize("large", [False, True])
def test_a_download_with_the_wrong_checksum_leaves_nothing_behind(fake: FakeHub, tmp_path: Path, large: bool) -> None:
    """Neither under its name nor as something to continue from; the earlier file stays."""

    def spoil(handler: Any) -> bool:
        handler.say(200, ROWS.replace(b"7", b"8"))
        return True

    with_repo(fake, train_dot_jsonl=ROWS)
    fake.large |= {"train.jsonl"} if large else set()
    (tmp_path / "train.jsonl").write_bytes(b"earlier")
    fake.faults += [("GET .*/resolve", spoil)]

    with pytest.raises(ChecksumMismatch, match="the Hub says"):
        fetched(fake, tmp_path / "train.jsonl")

    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
    assert (tmp_path / "train.jsonl").read_bytes() == b"earlier"


def test_a_file_that_is_there_already_is_not_downloaded(fake: FakeHub, tmp_path: Path) -> None:
    with_repo(fake, train_dot_jsonl=ROWS)
    fetched(fake, tmp_path / "train.jsonl")
    before = len(fake.asked("GET .*/resolve"))

    fetched(fake, tmp_path / "train.jsonl")

    assert len(fake.asked("GET .*/resolve")) == before


def test_two_downloads_of_one_file_do_not_mix(fake: FakeHub, tmp_path: Path) -> None:
    """Whoever comes second is told, instead of both writing into one file."""
    with_repo(fake, train_dot_jsonl=ROWS)
    problems = []

    def meanwhile(done: int, total: int | None) -> None:
        if not problems:
            with pytest.raises(RegistryError) as refused:
                fetched(fake, tmp_path / "train.jsonl")
            problems.append(str(refused.value))

    fetched(fake, tmp_path / "train.jsonl", meter=meanwhile)

    assert "another process is downloading" in problems[0]
    assert (tmp_path / "train.jsonl").read_bytes() == ROWS


def test_what_is_not_there_is_named_with_what_is(fake: FakeHub, tmp_path: Path) -> None:
    with_repo(fake, train_dot_jsonl=ROWS)

    with pytest.raises(RegistryError, match=r"no file 'trian.jsonl'; it has: train.jsonl"):
        fetched(fake, tmp_path / "x", path="trian.jsonl")
    with pytest.raises(RegistryError, match="no such revision"):
        fetched(fake, tmp_path / "x", revision="v9")
    fake.repos.clear()
    with pytest.raises(RegistryError, match="no such dataset, or it is private"):
        fetched(fake, tmp_path / "x")


def parquet(path: Path, rows: list[dict[str, Any]]) -> bytes:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path.read_bytes()


def test_all_splits_arrive_whatever_way_they_are_stored(fake: FakeHub, tmp_path: Path) -> None:
    """Datasets of others come as Parquet pieces under `data/`; here they become the JSONL every command reads."""
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

    written = hub.download(config, endpoint=fake.url, pause=0)

    assert set(written) == {out / "train.jsonl", out / "test.jsonl"}
    assert (out / "train.jsonl").read_bytes() == ROWS
    assert (out / "test.jsonl").read_bytes() == b'{"q":"1"}\n{"q":"2"}\n{"q":"3"}\n'
    assert sorted(path.name for path in out.iterdir()) == ["test.jsonl", "train.jsonl"]


def test_two_files_that_could_be_the_split_are_not_guessed_between(fake: FakeHub, tmp_path: Path) -> None:
    with_repo(fake, en__train_dot_jsonl=ROWS, fr__train_dot_jsonl=ROWS)

    with pytest.raises(RegistryError, match=r"could be the train split: en/train.jsonl, fr/train.jsonl"):
        fetched(fake, tmp_path / "x", path=None)


def test_a_dataset_without_the_split_says_what_it_has(fake: FakeHub, tmp_path: Path) -> None:
    with_repo(fake, notes_dot_csv=b"a,b")

    with pytest.raises(RegistryError, match=r"is a split 'test'; its files: notes.csv"):
        fetched(fake, tmp_path / "x", path=None, split="test")


def test_progress_is_told_up_to_the_whole_file(fake: FakeHub, tmp_path: Path) -> None:
    with_repo(fake, train_dot_jsonl=ROWS)
    told: list[tuple[int, int | None]] = []

    fetched(fake, tmp_path / "train.jsonl", meter=lambda done, total: told.append((done, total)))

    assert told[0] == (0, len(ROWS)) and told[-1] == (len(ROWS), len(ROWS))


@pytest.fixture
def keys(fake: FakeHub, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What env.yaml says, as overrides; the commands talk to the fake Hub."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", fake.url)
    template = f"{fake.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.chdir(tmp_path)
    return [f"+{key}={json.dumps(value)}" for key, value in config.items() if key != "input_jsonl_fpath"]


def test_the_upload_command_prints_one_object(fake: FakeHub, keys: list[str], rows: Path, capsys: Any) -> None:
    """Scripts read stdout; nothing else is on it, and no token."""
    code = main(["dataset", "upload", "-i", str(rows), "--name", "sums", "--split", "validation", "--json", *keys])

    told = capsys.readouterr()
    said = json.loads(told.out)
    assert code == 0 and said["repo_id"] == REPO and said["path"] == "validation.jsonl" and said["uploaded"]
    assert said["sha256"] == hashlib.sha256(ROWS).hexdigest() and said["deleted_from_gitlab"] is None
    assert TOKEN not in told.out + told.err


def test_the_download_command_writes_every_split(
    fake: FakeHub, keys: list[str], rows: Path, tmp_path: Path, capsys: Any
) -> None:
    main(["dataset", "upload", "-i", str(rows), *keys])
    main(["dataset", "upload", "-i", str(rows), "--split", "test", *keys])
    capsys.readouterr()

    code = main(["dataset", "download", "--repo-id", REPO, "--output-dir", "data", f"+hf_token={TOKEN}", "--json"])

    said = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [file["path"] for file in said["files"]] == ["data/train.jsonl", "data/test.jsonl"]
    assert (tmp_path / "data" / "test.jsonl").read_bytes() == ROWS


def test_a_token_in_the_environment_is_used(
    fake: FakeHub, keys: list[str], rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As every tool of the Hub does it."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    assert main(["dataset", "upload", "-i", str(rows), *(key for key in keys if "hf_token" not in key)]) == 0


def test_a_wrong_token_is_status_three_and_one_clear_message(
    fake: FakeHub, keys: list[str], rows: Path, capsys: Any
) -> None:
    wrong = [key.replace(TOKEN, "hf_wrongwrongwrong") for key in keys]

    code = main(["dataset", "upload", "-i", str(rows), *wrong])

    told = capsys.readouterr()
    assert code == 3 and not told.out
    assert "does not accept the token" in told.err and "hf_wrong" not in told.err and "Traceback" not in told.err


@pytest.fixture
def registry(mlflow_server: str, rows: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A dataset `sums` in a real MLflow registry."""
    from nemo_gym.config.schema_datasets import UploadJsonlDatasetGitlabConfig
    from nemo_gym.data import gitlab
    from nemo_gym.data.gitlab_client import Registry

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    for version in ("0.0.1", "0.0.2"):
        stored = UploadJsonlDatasetGitlabConfig(dataset_name="sums", version=version, input_jsonl_fpath=str(rows))
        gitlab.upload(stored, tracking_uri=mlflow_server)
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
    code = main(["dataset", "migrate", "-i", str(rows), "--name", "sums", "--yes", "--json", *both])

    said = json.loads(capsys.readouterr().out)
    assert code == 0 and said["deleted_from_gitlab"] == "sums" and said["repo_id"] == REPO
    assert fake.repos[REPO]["main"]["train.jsonl"] == ROWS
    assert not registry.has("sums")


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        ("POST .*/commit/", status(400)),
        ("POST .*/preupload/", status(403)),
        ("GET /datasets/.*/resolve", lambda handler: handler.say(200, ROWS.replace(b"7", b"8")) or True),
        ("POST /api/collections/", status(404)),
    ],
)
def test_whatever_goes_wrong_before_the_copy_is_verified_deletes_nothing(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any, pattern: str, answer: Any
) -> None:
    """The one promise of moving data: at every moment there is a whole copy."""
    fake.faults += [(pattern, answer)]

    code = main(["dataset", "migrate", "-i", str(rows), "--name", "sums", "--yes", *both])

    assert code in (1, 3)
    assert registry.versions("sums") == ["0.0.1", "0.0.2"]


def test_nothing_is_deleted_without_a_yes(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal nobody can agree; with one, silence is a no."""
    migrate = ["dataset", "migrate", "-i", str(rows), "--name", "sums", *both]
    delete_after = ["dataset", "upload", "-i", str(rows), "--name", "sums", "+delete_from_gitlab=true", *both]
    remove = ["dataset", "rm", "--name", "sums", *both]
    monkeypatch.setattr("sys.stdin", io.StringIO())

    assert [main(words) for words in (migrate, delete_after, remove)] == [2, 2, 2]
    assert "say --yes" in capsys.readouterr().err

    for typed in ("", "n\n", "yes please\n"):
        stdin = io.StringIO(typed)
        stdin.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(remove) == 1

    asked = capsys.readouterr().err
    assert "Delete 'sums' with all its versions, among them 0.0.1, 0.0.2, from GitLab? [y/N]" in asked
    assert not fake.commits and registry.versions("sums") == ["0.0.1", "0.0.2"]


def test_a_typed_yes_deletes(both: list[str], registry: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.StringIO("y\n")
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)

    assert main(["dataset", "rm", "--name", "sums", *both]) == 0
    assert not registry.has("sums")


def test_an_upload_can_delete_the_other_copy_afterwards(
    fake: FakeHub, both: list[str], registry: Any, rows: Path, capsys: Any
) -> None:
    words = ["dataset", "upload", "-i", str(rows), "--name", "sums", "+delete_from_gitlab=true", "--yes", *both]

    assert main(words) == 0
    assert "deleted from GitLab: sums" in capsys.readouterr().out
    assert not registry.has("sums")


def test_migrating_what_is_not_there_uploads_nothing(
    fake: FakeHub, both: list[str], rows: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")

    code = main(["dataset", "migrate", "-i", str(rows), "--name", "nowhere", "--yes", *both])

    assert code == 3 and not fake.seen
    assert "no dataset 'nowhere' in the GitLab registry" in capsys.readouterr().err
    assert main(["dataset", "rm", "--name", "nowhere", "--yes", *both]) == 3


def test_migrating_always_deletes_and_says_so_when_told_otherwise(both: list[str], rows: Path, capsys: Any) -> None:
    code = main(["dataset", "migrate", "-i", str(rows), "+delete_from_gitlab=false", "--yes", *both])

    assert code == 2 and "always deletes" in capsys.readouterr().err


def test_gitlab_takes_and_gives_by_command(
    keys: list[str], mlflow_server: str, rows: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two commands of the how-to, with the flags in place of the keys."""
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
    found = {"mlflow_tracking_uri": mlflow_server, "mlflow_tracking_token": "token-of-gitlab"}
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create(found))
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
