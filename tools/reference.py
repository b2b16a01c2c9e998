"""Write the reference pages from the code: `python -m tools.reference [--check]`.

What can be read from the code is not written twice; a test fails when a page is older than the code.
"""

import argparse
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from tools.endpoints import endpoints

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `python -m tools.reference`; edit the code instead. -->\n"


def cli() -> str:
    """Every command with the help it prints itself."""
    from nemo_gym.cli.main import ALONE, GROUPS, main

    os.environ["COLUMNS"] = "100"
    lines = ["# Commands", "", NOTE, "`ng` is another name for `gym`. Anything that no flag covers is an override:"]
    lines += ["`+key=value`, `++key=value`, `key=value`, `~key`.", ""]
    commands = [(group, name) for group, (_, names) in GROUPS.items() for name in names]
    for words in [(), *commands, *((name,) for name in ALONE)]:
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                main([*words, "--help"])
        except SystemExit:
            pass
        lines += [f"## {' '.join(('gym', *words))}", "", "```text", printed.getvalue().rstrip(), "```", ""]
    return "\n".join(lines)


def errors() -> str:
    """The texts that `gym explain` prints."""
    from nemo_gym.cli.explain import explanations

    lines = ["# Errors, failures and exit statuses", "", NOTE, "`gym explain CODE` prints one of these.", ""]
    for code, text in explanations().items():
        lines += [f"## {code}", "", text, ""]
    return "\n".join(lines)


def config_keys() -> str:
    """Top-level keys, what they must be and what they do."""
    from nemo_gym.config.global_keys import CHECKED
    from nemo_gym.config.key_meanings import MEANINGS

    lines = [
        "# Configuration keys",
        "",
        NOTE,
        "Top-level keys that every command understands. Defaults in brackets.",
        "",
    ]
    lines += ["| key | value | effect |", "|---|---|---|"]
    for key, meaning in MEANINGS.items():
        wanted = CHECKED[key][0] if key in CHECKED else ""
        lines.append(f"| `{key}` | {wanted} | {meaning} |")
    return "\n".join([*lines, ""])


CLASSES = {
    "nemo_gym.config_types": None,
    "nemo_gym.base_resources_server": ("BaseResourcesServerConfig",),
    "nemo_gym.base_responses_api_agent": ("BaseResponsesAPIAgentConfig",),
    "nemo_gym.base_responses_api_model": ("BaseResponsesAPIModelConfig",),
    "nemo_gym.rollout_collection": (
        "RolloutCollectionConfig",
        "E2ERolloutCollectionConfig",
        "RolloutAggregationConfig",
    ),
    "responses_api_models.openai_model.app": ("OpenAIModelConfig",),
    "responses_api_models.vllm_model.app": ("VLLMModelConfig",),
    "responses_api_agents.simple_agent.app": ("SimpleAgentConfig",),
}
"""Module -> which of its classes; None for every class in it."""


def config_classes() -> str:
    """Every configuration class with its fields."""
    lines = ["# Configuration classes", "", NOTE]
    shown: set[type[BaseModel]] = set()
    for module_name, names in CLASSES.items():
        module = importlib.import_module(module_name)
        for name in names or sorted(vars(module)):
            found = getattr(module, name, None)
            if not (isinstance(found, type) and issubclass(found, BaseModel) and found.model_fields) or found in shown:
                continue
            shown.add(found)
            lines += [f"## {name}", "", f"`{module_name}`", "", *_fields(found), ""]
    return "\n".join(lines)


def _fields(found: type[BaseModel]) -> Iterator[str]:
    text = (found.__doc__ or "").strip().splitlines()
    if text and not text[0].startswith("Usage docs"):
        yield from (*text[:1], "")
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for name, field in found.model_fields.items():
        kind = _kind(field.annotation).replace("|", "\\|")
        default = "required" if field.is_required() else f"`{_default(field.get_default(call_default_factory=True))}`"
        yield f"| `{name}` | `{kind}` | {default} | {(field.description or '').replace('|', chr(92) + '|')} |"


def _kind(annotation: Any) -> str:
    """A type as people write it, without what only validation needs."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if origin is Annotated:
        return _kind(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(_kind(part) for part in parts)
    if origin is Literal:
        return " | ".join(repr(part) for part in parts)
    if origin is not None:
        return f"{_kind(origin)}[{', '.join(_kind(part) for part in parts)}]"
    return str(getattr(annotation, "__name__", annotation))


def _default(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": cli,
    "errors.md": errors,
    "configuration-keys.md": config_keys,
    "configuration-classes.md": config_classes,
    "endpoints.md": lambda: endpoints(NOTE),
}


def stale(names: Iterable[str] = PAGES) -> list[str]:
    """The pages that differ from what the code says."""
    return [name for name in names if _on_disk(name) != PAGES[name]()]


def _on_disk(name: str) -> str:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    if parser.parse_args().check:
        found = stale()
        print(f"stale: {', '.join(found)}" if found else "fresh", file=sys.stderr)
        return int(bool(found))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
