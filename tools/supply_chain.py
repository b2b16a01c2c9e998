"""Check the locked requirements for known vulnerabilities, and write the bill of materials of a release.

python -m tools.supply_chain audit [--advisories FILE]   exit status: 0 none known, 1 vulnerable, 2 not checked
python -m tools.supply_chain sbom [--output FILE]        CycloneDX JSON; the same locks give the same bytes
"""

import argparse
import base64
import configparser
import contextlib
import hashlib
import json
import os
import re
import sys
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nemo_gym.config.secret_text import mask_text

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"
INSTALLED_LOCK = "run"
"""The lock with what users install; the other locks are for development."""
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
REGISTRY_SECONDS = 15.0
OK, VULNERABLE, NOT_CHECKED = 0, 1, 2


class NotChecked(Exception):
    """There are no advisories to compare with, or a lock cannot be read."""


@dataclass(frozen=True)
class Package:
    """One locked version of a package, with the digests of its files and the locks that contain it."""

    name: str
    version: str
    digests: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advisory:
    """One vulnerability of one locked package."""

    package: Package
    identifier: str
    summary: str
    fixed_in: str

    def __str__(self) -> str:
        fix = f"; fixed in {self.fixed_in}" if self.fixed_in else ""
        name = f"{self.package.name} {self.package.version}"
        return f"{name} ({', '.join(self.package.locks)}): {self.identifier} {self.summary}{fix}"


def read_locks(folder: Path) -> list[Package]:
    """Return the packages of every lock in the folder, sorted by name and version.

    Raises:
        NotChecked: a requirement is not pinned with a hash.
    """
    digests: dict[tuple[str, str], set[str]] = {}
    locks: dict[tuple[str, str], set[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        for requirement in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if not requirement.strip() or requirement.lstrip().startswith("#"):
                continue
            match, hashes = REQUIREMENT.match(requirement), HASH.findall(requirement)
            if match is None or not hashes:
                raise NotChecked(f"{path.name}: not pinned with a hash: {mask_text(requirement.strip()[:80])}")
            key = canonicalize_name(match[1]), match[2]
            digests.setdefault(key, set()).update(hashes)
            locks.setdefault(key, set()).add(path.stem)
    return [Package(*key, tuple(sorted(digests[key])), tuple(sorted(locks[key]))) for key in sorted(digests)]


def find_advisories(packages: Iterable[Package], entries: Iterable[Mapping[str, Any]]) -> list[Advisory]:
    """Return the entries, in the format of osv.dev, that affect a package."""
    by_name: dict[str, list[Package]] = {}
    for package in packages:
        by_name.setdefault(package.name, []).append(package)
    advisories = []
    for entry in entries:
        for affected in _pypi_parts(entry):
            for package in by_name.get(canonicalize_name(str(affected["package"].get("name", ""))), ()):
                if is_affected(package.version, affected):
                    fixes = [str(event["fixed"]) for event in _events(affected) if "fixed" in event]
                    summary = str(entry.get("summary") or entry.get("details") or "").split("\n")[0][:100]
                    advisories.append(Advisory(package, str(entry.get("id")), summary, ", ".join(fixes)))
    return advisories


def _pypi_parts(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a valid entry that name packages of PyPI."""
    parts = [] if entry.get("withdrawn") else entry.get("affected") or []
    return [part for part in parts if part["package"].get("ecosystem", "PyPI").partition(":")[0] == "PyPI"]


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Return whether a version is listed, or lies in a range between `introduced` and `fixed` or `last_affected`.

    What cannot be compared counts as affected: a part without versions and ranges, or with a limit of another form.
    """
    current, listed = Version(version), affected.get("versions") or ()
    groups = [group for group in affected.get("ranges") or () if group.get("type") != "GIT"]  # commits, not versions
    if any(_parse_version(text) in (current, None) for text in listed) or not (listed or groups):
        return True
    for group in groups:
        events = [(_parse_version(next(iter(event.values()), None)), event) for event in group.get("events") or ()]
        if not events or any(limit is None for limit, _ in events):
            return True
        is_inside = False
        for limit, event in sorted(events, key=lambda pair: pair[0]):
            if "introduced" in event:
                is_inside = is_inside or current >= limit
            elif ("fixed" in event and current >= limit) or ("last_affected" in event and current > limit):
                is_inside = False
        if is_inside:
            return True
    return False


def _events(affected: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    for group in affected.get("ranges") or ():
        if group.get("type") != "GIT":
            yield from group.get("events") or ()


def _parse_version(text: Any) -> Version | None:
    """Return a version; None if the text is not one."""
    try:
        return Version(str(text))
    except InvalidVersion:
        return None


def read_advisories(path: Path) -> list[Mapping[str, Any]]:
    """Read a file of advisories: one entry or a list of entries; a folder holds such files.

    Raises:
        NotChecked: a file is missing or is not in the format of osv.dev.
    """
    entries: list[Mapping[str, Any]] = []
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NotChecked(f"{file}: cannot be read as advisories: {error}") from None
        content = content if isinstance(content, list) else [content]
        if not all(map(_is_entry, content)):
            raise NotChecked(f"{file}: not in the format of osv.dev: every entry needs 'id' and 'affected'")
        entries += content
    if not any(map(_pypi_parts, entries)):
        raise NotChecked(f"{path}: contains no advisories for packages of PyPI")
    return entries


def _is_entry(entry: Any) -> bool:
    """Return whether a value is an entry of osv.dev, as far as `find_advisories` reads it."""

    def are_dicts(values: Any) -> bool:
        return isinstance(values, list) and all(isinstance(value, dict) for value in values)

    if not isinstance(entry, dict) or "id" not in entry:
        return False
    if entry.get("withdrawn"):
        return True
    parts = entry.get("affected")
    return are_dicts(parts) and all(
        isinstance(part.get("package"), dict)
        and isinstance(part["package"].get("ecosystem", "PyPI"), str)
        and isinstance(part.get("versions") or [], list)
        and are_dicts(part.get("ranges") or [])
        and all(are_dicts(group.get("events") or []) for group in part.get("ranges") or [])
        for part in parts
    )


def fetch_advisories(packages: Sequence[Package], registry: str) -> list[Advisory]:
    """Return the vulnerabilities that the registry lists for the packages.

    Raises:
        NotChecked: the registry does not answer, or lists no vulnerabilities of any package.
    """
    scheme, separator, rest = registry.partition("://")
    user, _, host = rest.partition("/")[0].rpartition("@")
    address = scheme + separator + host + rest[rest.find("/") :] if user else registry
    encoded = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    headers = {"Authorization": f"Basic {encoded}"} if user else {}  # urllib does not read the user of a URL

    def fetch(package: Package) -> list[Advisory]:
        request = urllib.request.Request(f"{address}/{package.name}/{package.version}/json", headers=headers)
        with urllib.request.urlopen(request, timeout=REGISTRY_SECONDS) as response:
            entries = json.load(response)["vulnerabilities"]
        return [
            Advisory(package, str(e["id"]), str(e.get("summary") or "")[:100], ", ".join(e.get("fixed_in") or ()))
            for e in entries
            if not e.get("withdrawn")
        ]

    try:
        first = fetch(packages[0])  # one request shows whether the registry answers
        with ThreadPoolExecutor(8) as pool:
            return [*first, *(advisory for others in pool.map(fetch, packages[1:]) for advisory in others)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = mask_text(f"{registry}: {error!r}")
        raise NotChecked(f"no advisories: the registry does not provide them ({reason})") from None


def registry_address() -> str:
    """Return the address of the registry's JSON interface, beside the index that pip uses."""
    home = Path.home()
    names = ["/etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf", Path(sys.prefix) / "pip.conf"]
    settings = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(configparser.Error, UnicodeDecodeError):
        settings.read([*names, os.environ.get("PIP_CONFIG_FILE", os.devnull)], encoding="utf-8")  # the last one wins
    configured = settings.get("global", "index-url", fallback="")
    index = os.environ.get("PIP_INDEX_URL") or configured or "https://pypi.org/simple"
    return index.rstrip("/").removesuffix("/simple") + "/pypi"


def audit(folder: Path, advisory_path: Path | None) -> int:
    """Print every known vulnerability of the locked packages; return the exit status."""
    try:
        packages = read_locks(folder)
        if advisory_path is not None:
            advisories = find_advisories(packages, read_advisories(advisory_path))
        else:
            advisories = fetch_advisories(packages, registry_address())
    except NotChecked as problem:
        fix = "" if advisory_path else "\n  try: --advisories FILE (entries of osv.dev), or a network with the registry"
        sys.stderr.write(f"Error: {problem}{fix}\n")
        return NOT_CHECKED
    for advisory in advisories:
        text = "".join(character if character.isprintable() else " " for character in str(advisory))  # no escapes
        sys.stdout.write(f"{text}\n")
    sys.stdout.write(f"{len(packages)} locked packages, {len(advisories)} known vulnerabilities\n")
    return VULNERABLE if advisories else OK


def bill_of_materials(packages: Sequence[Package], version: str) -> dict[str, Any]:
    """Return the CycloneDX document of the locked packages, without a time, so that it is reproducible."""
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{package.name}@{package.version}",
            "name": package.name,
            "version": package.version,
            "scope": "required" if INSTALLED_LOCK in package.locks else "excluded",
            "purl": f"pkg:pypi/{package.name}@{package.version}",
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.digests],
            "properties": [{"name": "nemo-gym:lock", "value": lock} for lock in package.locks],
        }
        for package in packages
    ]
    digest = hashlib.sha256(json.dumps([version, components], sort_keys=True).encode()).hexdigest()
    subject = {"type": "application", "bom-ref": "nemo-gym", "name": "nemo-gym", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
    }


def write_sbom(folder: Path, output: Path) -> int:
    """Write the bill of materials of the locks in the folder; return the exit status."""
    try:
        packages = read_locks(folder)
    except NotChecked as problem:
        sys.stderr.write(f"Error: {problem}\n")
        return NOT_CHECKED
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(bill_of_materials(packages, version), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{output}: {len(packages)} packages\n")
    return OK


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("audit", "sbom"))
    parser.add_argument("--locks", type=Path, default=LOCKS, metavar="FOLDER", help="folder of the lock files")
    parser.add_argument("--advisories", type=Path, metavar="FILE", help="advisories in the format of osv.dev")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "sbom.cdx.json", metavar="FILE")
    args = parser.parse_args(words)
    return audit(args.locks, args.advisories) if args.command == "audit" else write_sbom(args.locks, args.output)


if __name__ == "__main__":
    raise SystemExit(main())
