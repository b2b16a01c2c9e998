"""Write the table of shipped environments: `python -m tools.environments [--check]`.

What is graded is the description in configs/<name>.yaml; the audit's result is what `gym env audit --update-readme`
wrote into the README.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.catalog.files import whole_file
from nemo_gym.environment.audit_result import part_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "environments.md"
INTRODUCTION = """# Environments

<!-- Written by `python -m tools.environments`; edit the configurations and READMEs instead. -->

What ships in `resources_servers/`. Every folder has five example rows, a generator of more, example rollouts, and an
audit that shows what its verifier pays for ([how](audit.md)). The README of a folder has the fields of its rows, its
settings, and what it judges wrong although it is right.

```bash
gym env audit mcqa --rows 5   # any of them
```

```console
$ gym eval run --resources-server mcqa --model-type openai_model
```

| environment | domain | what is graded | audit |
|---|---|---|---|"""
_COUNTS = re.compile(r"^\| [^|]+ \| (\d+) \| (\d+) \|$", re.MULTILINE)


def page() -> str:
    """The page as it should be."""
    return "\n".join([INTRODUCTION, *lines(), ""])


def lines() -> Iterator[str]:
    for folder in sorted((ROOT / "resources_servers").iterdir()):
        settings = settings_of(folder)
        if settings is not None:
            said = str(settings.get("description") or "").replace("|", "\\|")
            yield f"| `{folder.name}` | {settings.get('domain', '')} | {said} | {audit_of(folder)} |"


def settings_of(folder: Path) -> Mapping[str, Any] | None:
    """The server's block in the folder's own configuration; None in a folder that is only built on by others."""
    path = folder / "configs" / f"{folder.name}.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    for block in (tree or {}).values():
        servers = block.get("resources_servers") if isinstance(block, Mapping) else None
        if isinstance(servers, Mapping) and isinstance(servers.get(folder.name), Mapping):
            found: Mapping[str, Any] = servers[folder.name]
            return found
    return None


def audit_of(folder: Path) -> str:
    """What the README says about the audit, in a few words."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    place = part_of(text, path)
    if place is None:
        return "none yet"
    counts = [(int(cases), int(off)) for cases, off in _COUNTS.findall(text[slice(*place)])]
    cases, off = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    return f"{cases:,} cases, {off or 'none'} off" if cases else "none yet"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    check = parser.parse_args().check
    wanted = page()
    is_fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted
    if not check and not is_fresh:
        with whole_file(PAGE) as stream:
            stream.write(wanted.encode())
    print("fresh" if is_fresh else f"{PAGE.name} is stale" if check else f"{PAGE.name} is written", file=sys.stderr)
    return int(check and not is_fresh)


if __name__ == "__main__":
    raise SystemExit(main())
