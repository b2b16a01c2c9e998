"""Write the table of shipped environments: `python -m tools.environments [--check]`.

The description comes from configs/<name>.yaml, the audit result from the README, where
`gym env audit --update-readme` writes it.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.authoring.audit_result import find_section
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config.environment_sources import find_environment_sources
from nemo_gym.config.instances import instances_of

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
OF_PACKAGES = """
## Environments of other packages

They run by name, `--environment SOURCE:ID` ([adapters](adapters.md)). The table is that of the versions that the lists
of ids were made with, on Python 3.11 without a network; `gym list environments --source SOURCE` has every reason. A
user's `module:Name` of gymnasium and Aviary runs as well. "Runs" means that it starts and answers; some games of
TextArena raise errors after certain moves, which are failures of the rollout.

| source | version | environments that run | why others do not |
|---|---|---|---|"""
MOST_REASONS = 4
_COUNTS = re.compile(r"^\| [^|]+ \| (\d+) \| (\d+) \|$", re.MULTILINE)


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *lines(), OF_PACKAGES, *source_lines(), ""])


def source_lines() -> Iterator[str]:
    """Yield a row for each source of environments of other packages."""
    for name, source in find_environment_sources([ROOT]).items():
        reasons = Counter(_short_reason(facts["refused"]) for facts in source.ids.values() if "refused" in facts)
        refused = "; ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common(MOST_REASONS))
        others = sum(reasons.values()) - sum(count for _, count in reasons.most_common(MOST_REASONS))
        refused += f"; other reasons ({others:,})" if others else ""
        count = f"{len(source.runnable_ids):,} of {len(source.ids):,}"
        count = "packages, by their names" if source.runs_any_name else count
        yield f"| `{name}` | {source.version} | {count} | {refused} |"


def _short_reason(reason: str) -> str:
    """Return a reason without what differs between environments."""
    return reason.split(":")[0].split(",")[0].replace("|", "\\|")


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
    servers = instances_of(tree or {}, "resources_servers")
    return next((server.fields for server in servers if server.implementation == folder.name), None)


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
