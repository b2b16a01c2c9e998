"""The Hugging Face Hub through its own client library, with limits on every wait and errors in plain words."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_gym.config.secrets import scrubbed
from nemo_gym.data.hub_transfer import (
    LONGEST_PAUSE,
    PATIENCE,
    Answer,
    Ask,
    Digest,
    Meter,
    RegistryError,
    TransferBroken,
    again,
    digest_of,
    download,
    no_meter,
    remote_sha256,
    watched,
)
from nemo_gym.errors import ConfigError

DATASET = "dataset"
CALLS = 3
"""How often a small request is made before the Hub counts as down."""
_WORTH_ANOTHER_TRY = frozenset({408, 429, 500, 502, 503, 504})


class Hub:
    """Datasets on the Hub. Without a token the library's own login is used, if there is one."""

    def __init__(self, token: str | None = None, *, endpoint: str | None = None, pause: float = 1.0) -> None:
        self._library = _library()
        self._utils = importlib.import_module("huggingface_hub.utils")
        self._known = importlib.import_module("huggingface_hub.errors")
        _limit_waits(self._library)
        self._http = _http_of(self._library)
        self._utils.disable_progress_bars()
        self._api = self._library.HfApi(endpoint=endpoint, token=token)
        self._token = token
        self._pause = pause

    def page(self, repo: str) -> str:
        """Where people look at a dataset."""
        return f"{self._api.endpoint}/datasets/{repo}"

    def create(self, repo: str, branch: str | None) -> None:
        """Make a private dataset repository, and a branch of it, unless they are there."""
        make = partial(self._api.create_repo, repo, repo_type=DATASET, private=True, exist_ok=True)
        self._patiently(repo, make)
        if branch and branch != "main" and not branch.startswith("refs/"):
            grow = partial(self._api.create_branch, repo, branch=branch, repo_type=DATASET, exist_ok=True)
            self._patiently(repo, grow)

    def send(self, file: Path, repo: str, path: str, meter: Meter = no_meter, **commit: Any) -> Any:
        """Commit a file; the library's account of the commit."""
        with self._explained(repo), watched(file, meter):
            return self._api.upload_file(
                path_or_fileobj=str(file), path_in_repo=path, repo_id=repo, repo_type=DATASET, **commit
            )

    def collect(self, repo: str, collection: str) -> None:
        """Put a dataset into a collection, unless it is there."""
        add = partial(self._api.add_collection_item, collection, item_id=repo, item_type=DATASET, exists_ok=True)
        self._patiently(f"collection {collection}", add)

    def files(self, repo: str, revision: str | None) -> list[str]:
        """The paths of all files."""
        with self._explained(repo):
            return list(self._api.list_repo_files(repo, repo_type=DATASET, revision=revision))

    def holds(self, repo: str, path: str, revision: str | None, digest: Digest, *, read_back: bool) -> bool:
        """Whether the Hub has exactly this content there.

        Of large files it knows the SHA-256. Of small ones it knows git's checksum; with `read_back` they are also read
        and summed.
        """
        entry = self._entry(repo, path, revision)
        if entry is None or entry.size != digest.size:
            return False
        if entry.lfs is not None:
            return bool(entry.lfs.sha256 == digest.sha256)
        if not read_back:
            return bool(entry.blob_id == digest.git)
        ask = self._ask(repo, path, revision, entry.size)
        return remote_sha256(ask, where=f"{repo}/{path}", pause=self._pause) == digest.sha256

    def fetch(self, repo: str, path: str, target: Path, revision: str | None, meter: Meter = no_meter) -> Digest:
        """Download one file, checked against what the Hub says about it; one that is already there is left alone."""
        where = f"{repo}/{path}"
        entry = self._entry(repo, path, revision)
        if entry is None:
            there = [name for name in self.files(repo, revision) if not name.startswith(".")]
            raise RegistryError(f"the dataset has no file {path!r}; it has: {', '.join(there) or 'none'}", where=repo)

        def check(got: Digest) -> str | None:
            kind, want, have = ("git checksum", entry.blob_id, got.git)
            if entry.lfs is not None:
                kind, want, have = ("SHA-256", entry.lfs.sha256, got.sha256)
            return None if want == have else f"the {kind} of what arrived is {have}; the Hub says {want}"

        if target.is_file() and target.stat().st_size == entry.size:
            present = digest_of(target)
            if check(present) is None:
                return present
        ask = self._ask(repo, path, revision, entry.size)
        key = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
        return download(ask, target, key=key, where=where, check=check, meter=meter, pause=self._pause)

    def _entry(self, repo: str, path: str, revision: str | None) -> Any:
        """What the Hub knows about a file, or None."""
        ask = partial(self._api.get_paths_info, repo, [path], repo_type=DATASET, revision=revision)
        found = self._patiently(repo, ask)
        return next((entry for entry in found if entry.path == path and hasattr(entry, "blob_id")), None)

    def _ask(self, repo: str, path: str, revision: str | None, size: int) -> Ask:
        url = self._library.hf_hub_url(repo, path, repo_type=DATASET, revision=revision, endpoint=self._api.endpoint)

        @contextmanager
        def ask(offset: int) -> Iterator[Answer]:
            offset = offset if offset <= size else 0
            if offset == size:
                yield Answer(size, size, iter(()))
                return
            headers = {**self._utils.build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            with self._explained(f"{repo}/{path}", broken=True):
                stream = self._library.get_session().stream("GET", url, headers=headers, timeout=PATIENCE)
                with stream as response:
                    if response.status_code in _WORTH_ANOTHER_TRY:
                        raise TransferBroken(f"the Hub answered {response.status_code}")
                    if response.status_code >= 400:
                        response.read()
                        self._utils.hf_raise_for_status(response)
                    yield Answer(offset if response.status_code == 206 else 0, size, response.iter_bytes())

        return ask

    def _patiently(self, where: str, call: Callable[[], Any]) -> Any:
        """A call that does no harm when made twice, and that the library itself makes only once."""

        def attempt() -> Any:
            with self._explained(where, broken=True):
                return call()

        return again(attempt, where=where, pause=self._pause, attempts=CALLS)

    @contextmanager
    def _explained(self, where: str, *, broken: bool = False) -> Iterator[None]:
        """Errors of the library as ours, without the token. With `broken`, an outage is worth another try."""
        try:
            yield
        except self._known.HfHubHTTPError as error:
            if broken and getattr(error.response, "status_code", None) in _WORTH_ANOTHER_TRY:
                raise TransferBroken(f"the Hub answered {error.response.status_code}") from None
            raise self._refusal(error, where) from None
        except self._http.TransportError as error:
            problem = self._hidden(f"the Hub cannot be reached: {error}")
            if broken:
                raise TransferBroken(problem) from None
            fix = "check the network, and HF_ENDPOINT if you set it"
            raise RegistryError(problem, where=where, fix=fix) from None
        except (ValueError, RuntimeError) as error:  # arguments it refuses, and what its Rust parts raise
            said = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
            raise RegistryError(self._hidden(f"the Hub's client gave up: {said}"), where=where) from None

    def _refusal(self, error: Any, where: str) -> RegistryError:
        status = getattr(error.response, "status_code", None)
        kinds: list[tuple[Any, str, str | None]] = [
            (self._known.GatedRepoError, "access to this dataset must be asked for", "ask on its page, then try again"),
            (self._known.EntryNotFoundError, "the Hub has no such file there", None),
            (self._known.RevisionNotFoundError, "the Hub has no such revision", "name an existing branch or tag"),
        ]
        for kind, problem, fix in kinds:
            if isinstance(error, kind):
                return RegistryError(problem, where=where, fix=fix)
        if status == 401 and self._token:  # without one, the Hub says so of every repository that it does not show
            fix = "check hf_token in env.yaml, or make a new one on the Hub's settings page"
            return RegistryError("the Hub does not accept the token (401)", where=where, fix=fix)
        if status == 403:
            fix = "use a token with write access to this organization"
            return RegistryError("the token has no right to do this (403)", where=where, fix=fix)
        if status in (401, 404):
            fix = "check the name; for a private one give hf_token in env.yaml"
            return RegistryError("there is no such dataset, or it is private", where=where, fix=fix)
        says = getattr(error, "server_message", None) or str(error)
        return RegistryError(self._hidden(f"the Hub answered {status}: {says.strip()}"), where=where)

    def _hidden(self, text: str) -> str:
        return scrubbed(text, [self._token] if self._token else [])


def _library() -> ModuleType:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        fix = "pip install 'nemo-gym[hub]'"
        raise ConfigError("datasets on the Hugging Face Hub need the package huggingface_hub", fix=fix) from None


def _http_of(library: ModuleType) -> ModuleType:
    """The HTTP package this version of the library is built on."""
    return sys.modules[type(library.get_session()).__module__.partition(".")[0]]


def _limit_waits(library: ModuleType) -> None:
    """The library's own client waits without end; whoever has set one with limits keeps it."""
    session = library.get_session()
    if session.timeout.read is not None:
        return
    kind: Callable[..., Any] = type(session)
    hooks = session.event_hooks
    hooks = {**hooks, "response": [*hooks.get("response", ()), _refuse_long_pauses]}
    library.set_client_factory(partial(kind, event_hooks=hooks, follow_redirects=True, timeout=PATIENCE))


def _refuse_long_pauses(response: Any) -> None:
    """The library sleeps for as long as the Hub asks; beyond a limit, stopping is better."""
    asked = response.headers.get("retry-after", "")
    if asked.isdigit() and int(asked) > LONGEST_PAUSE:
        raise RegistryError(f"the Hub asks to come back in {asked} s", where=response.url.host, fix="try again then")
