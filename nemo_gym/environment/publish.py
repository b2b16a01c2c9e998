"""Whether an environment is ready for others: nothing left to be filled in, a licence, and found under its name."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.environment.check import VERIFIERS, Finding, check_manifest
from nemo_gym.environment.manifest import FOLDERS, MANIFEST, EnvironmentManifest, plain

PLACEHOLDER = re.compile(r"\b(to-?do|fix-?me|tbd|say here|whom to ask)\b|\?\?\?", re.IGNORECASE)
"""What people leave for later, and what `gym env init` asks them to replace."""
README = "README.md"


def check_publishable(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> list[Finding]:
    """Everything that stands between an environment and its users, short of trying its verifier.

    Raises:
        ConfigError: the configuration beside the manifest cannot be read.
    """
    return [
        *check_manifest(path, manifest, roots),
        *_unfinished(path, manifest, roots),
        *_not_alone(path, manifest, roots),
    ]


def _unfinished(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> Iterator[Finding]:
    for key, text in _texts("", plain(manifest)):
        if found := PLACEHOLDER.search(text):
            yield Finding(path.name, f"{key} still says '{found.group()}'")
    if manifest.licensing.lower() == "unknown":
        yield Finding(path.name, "licensing is unknown; name the licence of its data: an SPDX name, internal, …")
    folders = [path.parent]
    folders += [root / VERIFIERS / manifest.resources_server for root in roots if manifest.resources_server]
    readmes = [folder / README for folder in folders[:1]] + _first_file(folder / README for folder in folders[1:])
    for readme in readmes:
        if not readme.is_file():
            yield Finding(str(readme), "does not exist")
            continue
        for number, line in enumerate(readme.read_text(encoding="utf-8").splitlines(), start=1):
            if found := PLACEHOLDER.search(line):
                yield Finding(
                    f"{readme.parent.parent.name}/{readme.parent.name}/{README}:{number}",
                    f"still says '{found.group()}'",
                )


def _first_file(candidates: Iterator[Path]) -> list[Path]:
    return next(([path] for path in candidates if path.is_file()), [])


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(f"{key}[{number}]", inner)


def _not_alone(path: Path, manifest: EnvironmentManifest, roots: Sequence[Path]) -> Iterator[Finding]:
    """Others of the same name: whoever asks for it must get this one."""
    for folder in FOLDERS.values():
        for root in roots:
            other = root / folder / manifest.name / MANIFEST
            if other.is_file() and other.resolve() != path.resolve():
                yield Finding(path.name, f"'{manifest.name}' is also the name of {other}")
    if not any((root / FOLDERS[manifest.kind] / manifest.name / MANIFEST).is_file() for root in roots):
        yield Finding(path.name, f"nobody finds it: it is not in {FOLDERS[manifest.kind]}/{manifest.name} of any root")
