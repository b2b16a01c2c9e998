"""Write the table of shipped environments: `python -m tools.environments [--check]`.

The description comes from configs/<name>.yaml, the audit result from the README, where
`gym env audit --update-readme` writes it.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.authoring.audit_result import find_section
from nemo_gym.catalog.atomic_files import whole_file

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "environments.md"
INTRODUCTION = """# Environments

<!-- Written by `python -m tools.environments`; edit the configurations and READMEs instead. -->

These environments ship in `resources_servers/`. Every folder has five example rows, a generator for more, example
rollouts, and an [audit](audit.md) of its verifier. The README of a folder documents the fields of its rows, its
settings, and the right answers that its verifier misjudges.

```bash
gym env audit mcqa --rows 5   # any environment of the table
```

```console
$ gym eval run --resources-server mcqa --model-type openai_model
```

| environment | domain | what is graded | audit |
|---|---|---|---|"""
_COUNTS = re.compile(r"^\| [^|]+ \| (\d+) \| (\d+) \|$", re.MULTILINE)


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *lines(), ""])


def lines() -> Iterator[str]:
    for folder in sorted((ROOT / "resources_servers").iterdir()):
        settings = settings_of(folder)
        if settings is not None:
            description = str(settings.get("description") or "").replace("|", "\\|")
            yield f"| `{folder.name}` | {settings.get('domain', '')} | {description} | {audit_of(folder)} |"


def settings_of(folder: Path) -> Mapping[str, Any] | None:
    """Return the server block of the folder's configuration, or None for a folder without an environment."""
    path = folder / "configs" / f"{folder.name}.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    for block in (tree or {}).values():
        servers = block.get("resources_servers") if isinstance(block, Mapping) else None
        if isinstance(servers, Mapping) and isinstance(servers.get(folder.name), Mapping):
            block_settings: Mapping[str, Any] = servers[folder.name]
            return block_settings
    return None


def audit_of(folder: Path) -> str:
    """Summarise the audit result in the README."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    section = find_section(text, path)
    if section is None:
        return "none yet"
    counts = [(int(cases), int(misjudged)) for cases, misjudged in _COUNTS.findall(text[slice(*section)])]
    cases, misjudged = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    return f"{cases:,} cases, {misjudged or 'none'} misjudged" if cases else "none yet"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    check = parser.parse_args().check
    expected = page()
    is_fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == expected
    if not check and not is_fresh:
        with whole_file(PAGE) as stream:
            stream.write(expected.encode())
    print("up to date" if is_fresh else f"{PAGE.name} is stale" if check else f"{PAGE.name} written", file=sys.stderr)
    return int(check and not is_fresh)


if __name__ == "__main__":
    raise SystemExit(main())
