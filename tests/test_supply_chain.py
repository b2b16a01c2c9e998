"""The locks can be checked for vulnerabilities without a network, and a release says what it contains."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import supply_chain

LOCK = (
    f"good-one==2.0.1 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
    f"Bad.Two[extra]==1.4 ; python_version >= '3.11' \\\n    --hash=sha256:{'c' * 64}\n"
)
ADVISORY = {
    "id": "PYSEC-1",
    "summary": "reads files",
    "affected": [
        {
            "package": {"name": "bad_two", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1.2"}, {"fixed": "1.5"}]}],
        }
    ],
}


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    folder = tmp_path / "requirements"
    folder.mkdir()
    (folder / "run.txt").write_text(LOCK)
    (folder / "dev.txt").write_text(LOCK.splitlines(keepends=True)[0] + f"    --hash=sha256:{'a' * 64}\n")
    return folder


def _audit(locks: Path, *words: str) -> int:
    return supply_chain.main(["audit", "--locks", str(locks), *words])


def test_a_vulnerable_version_is_reported_from_a_file_without_a_network(locks, tmp_path, capsys):
    """Release machines are often offline; names are written in several ways."""
    file = tmp_path / "advisories.json"
    file.write_text(json.dumps([ADVISORY]))

    assert _audit(locks, "--advisories", str(file)) == 1
    assert "bad-two 1.4 (run): PYSEC-1 reads files; fixed in 1.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    "events",
    [
        [{"introduced": "0"}, {"fixed": "1.4"}],
        [{"introduced": "1.4.1"}],
        [{"introduced": "0"}, {"last_affected": "1.3"}],
        [{"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "1.10"}, {"fixed": "2"}],
    ],
)
def test_a_version_outside_the_ranges_is_not_reported(locks, tmp_path, events):
    """1.10 is later than 1.4; a false alarm on every release would be ignored."""
    ranges = [{"type": "ECOSYSTEM", "events": events}]
    entry = {**ADVISORY, "affected": [{**ADVISORY["affected"][0], "ranges": ranges}]}
    (tmp_path / "one.json").write_text(json.dumps(entry))

    assert _audit(locks, "--advisories", str(tmp_path / "one.json")) == 0


def test_without_advisories_the_result_is_not_a_pass(locks, monkeypatch, capsys):
    """A check that could not check must not look like a clean one, and must not print the index password."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://joe:q7password@127.0.0.1:9/simple")

    assert _audit(locks) == 2
    error = capsys.readouterr().err
    assert "--advisories FILE" in error and "q7password" not in error and "Traceback" not in error


def _entry(**fields: object) -> dict[str, object]:
    return {**ADVISORY, "affected": [{"package": {"name": "bad-two", "ecosystem": "PyPI"}, **fields}]}


@pytest.mark.parametrize(
    "entry",
    [
        _entry(versions=["1.4.0"]),
        _entry(ranges=[{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.5.0"}]}]),
        _entry(ranges=[{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "next-release"}]}]),
        _entry(versions=None, ranges=None),
        _entry(ranges=[{"type": "GIT", "events": [{"introduced": "0"}]}]),
        {**_entry(), "summary": "\x1b[2Jreads files"},
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_reported(locks, tmp_path, capsys, entry):
    """Versions have many forms; an advisory that is not understood must not pass."""
    (tmp_path / "one.json").write_text(json.dumps([entry, {"id": "x", "withdrawn": "2020-01-01T00:00:00Z"}]))

    assert _audit(locks, "--advisories", str(tmp_path / "one.json")) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        *("not json", "[1]", '{"id": "x"}', "[]", '{"id": "x", "affected": null}', '{"id": "x", "affected": [null]}'),
        '{"id": "x", "affected": [{"package": null}]}',
        '{"id": "x", "affected": [{"package": {"name": "bad-two"}, "ranges": [{"events": [1]}]}]}',
        '{"id": "x", "affected": [{"package": {"name": "bad-two", "ecosystem": "npm"}}]}',
    ],
)
def test_a_file_that_holds_no_advisories_is_an_error(locks, tmp_path, content):
    """A wrong file, read as an empty list, would pass every release."""
    (tmp_path / "wrong.json").write_text(content)

    assert _audit(locks, "--advisories", str(tmp_path / "wrong.json")) == 2


def test_a_requirement_without_a_hash_is_an_error(locks):
    """An unpinned line is installed unchecked."""
    (locks / "more.txt").write_text("loose>=1\n")

    assert _audit(locks, "--advisories", str(locks)) == 2


@pytest.fixture
def registry() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/private/") and self.headers["Authorization"] != "Basic am9lOnBAc3M=":
                self.send_error(401)
                return
            entries = [{"id": "PYSEC-9", "summary": "s", "fixed_in": ["3"]}] if "/good-one/2.0.1/" in self.path else []
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"vulnerabilities": entries}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def test_the_registry_is_used_without_a_file(locks, registry, monkeypatch, capsys):
    """The registry that pip uses knows the advisories of its packages."""
    monkeypatch.setenv("PIP_INDEX_URL", registry)

    assert _audit(locks) == 1
    assert "good-one 2.0.1 (dev, run): PYSEC-9 s; fixed in 3" in capsys.readouterr().out


@pytest.mark.parametrize("is_file", [True, False], ids=["pip.conf", "PIP_INDEX_URL"])
def test_a_private_registry_with_a_password_is_used(locks, registry, monkeypatch, tmp_path, is_file):
    """Companies configure their index for pip once; the check must ask that one."""
    address = registry.replace("127.0.0.1", "joe:p%40ss@127.0.0.1").replace("/simple", "/private/simple")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {address}\n")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv(*(("PIP_CONFIG_FILE", str(tmp_path / "pip.conf")) if is_file else ("PIP_INDEX_URL", address)))

    assert _audit(locks) == 1


def test_the_bill_of_materials_is_reproducible_and_complete(locks, tmp_path):
    """Two builds of one release must agree, and every locked file must be in the document."""
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for output in (one, two):
        assert supply_chain.main(["sbom", "--locks", str(locks), "--output", str(output)]) == 0

    document = json.loads(one.read_text())
    assert one.read_bytes() == two.read_bytes()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    bad, good = document["components"]
    assert bad["purl"] == "pkg:pypi/bad-two@1.4" and good["scope"] == "required"
    assert [entry["content"] for entry in good["hashes"]] == ["a" * 64, "b" * 64]
    (locks / "run.txt").write_text(LOCK.replace("2.0.1", "2.0.2"))
    supply_chain.main(["sbom", "--locks", str(locks), "--output", str(two)])
    assert json.loads(two.read_text())["serialNumber"] != document["serialNumber"]


def test_every_lock_of_this_project_is_pinned_with_hashes():
    """The set-up installs from these files only."""
    packages = supply_chain.read_locks(supply_chain.LOCKS)

    assert len(packages) > 50
    assert all(package.digests for package in packages)
