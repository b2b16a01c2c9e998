"""Documentation is code: its links resolve and its examples run."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import docs_site

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOTTED_NAME = re.compile(r"\bnemo_gym(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


COMMAND = re.compile(r"(?:`|^\$ |^)gym ((?:[^`\n]|\\\n)+)", re.MULTILINE)


def blocks(page: Path, language: str) -> Iterator[str]:
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block.group(1) == language:
            yield block.group(2)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    """A dead link hides the page it should lead to."""
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]

    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page run in order, in one namespace, as a reader would type them in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs_example"}

    for block in blocks(page, "python"):
        try:
            exec(compile(block, str(page), "exec"), namespace)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("nemo_gym"):
                raise
            pytest.skip(f"the example needs the package {error.name}")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_yaml_examples_parse(page: Path) -> None:
    """What is shown must at least be YAML."""
    for block in blocks(page, "yaml"):
        yaml.safe_load(block)


def resolves(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("nemo_gym"):  # the module exists and needs an extra
                return end == len(parts)
            continue
        return all((value := getattr(value, part, None)) is not None for part in parts[end:])
    return False


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_names_of_modules_and_functions_exist(page: Path) -> None:
    """A page that names code which was renamed sends its reader on a search."""
    names = set(DOTTED_NAME.findall(page.read_text(encoding="utf-8")))

    assert not sorted(name for name in names if not resolves(name))


def test_every_promise_names_a_check_that_exists() -> None:
    """A promise whose check was renamed or removed is only a claim."""
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    paths = [word for command in re.findall(r"`pytest ([^`]+)`", page) for word in command.split() if "/" in word]
    scenarios = re.findall(r"`python -m chaos (\w+)`", page)
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| promise")]

    assert not [path for path in paths if not (ROOT / path).exists()]
    assert not [name for name in scenarios if not (ROOT / "chaos" / "scenarios" / f"{name}.py").exists()]
    assert not [row for row in rows if "`" not in row.split("|")[2]]


def test_the_example_of_the_configuration_page_is_a_valid_configuration() -> None:
    """The first thing a reader copies has to work."""
    from omegaconf import OmegaConf

    from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig

    example = next(blocks(ROOT / "docs" / "configuration.md", "yaml"))
    parsed = GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=OmegaConf.merge(
                OmegaConf.create(example), GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
            ),
            skip_load_from_cli=True,
            skip_load_from_dotenv=True,
            offline=True,
        )
    )

    assert parsed.weather_agent.responses_api_agents.simple_agent.resources_server.name == "weather"


def test_the_shown_error_is_the_one_people_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are improved all the time; what the page shows must follow."""
    from nemo_gym.config.resolve import ResolveRequest, resolve
    from nemo_gym.errors import ServerRefNotFoundError
    from nemo_gym.global_config import host_facts

    page = ROOT / "docs" / "configuration.md"
    example = next(blocks(page, "yaml")).replace("name: weather}", "name: example_single_tool_call}")
    (tmp_path / "weather.yaml").write_text(example)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ServerRefNotFoundError) as raised:
        resolve(
            ResolveRequest(
                overrides=[
                    "+config_paths=[weather.yaml]",
                    "~weather_agent.responses_api_agents.simple_agent.model_server",
                ],
                offline=True,
            ),
            host_facts(),
        )

    assert str(raised.value) in next(blocks(page, "text"))


def test_the_error_of_the_anatomy_page_is_the_one_people_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page teaches by a mistake; the message has to be the one that teaches."""
    from nemo_gym.config.resolve import ResolveRequest, resolve
    from nemo_gym.errors import ConfigError
    from nemo_gym.global_config import host_facts

    page = ROOT / "docs" / "anatomy.md"
    example = "".join(blocks(page, "bash")).partition("<<'YAML'\n")[2].partition("YAML\n")[0]
    broken = example.replace("name: weather  ", "name: example_single_tool_call").replace("domain:", "domian:")
    assert broken.count("example_single_tool_call") == example.count("example_single_tool_call") + 1
    (tmp_path / "broken.yaml").write_text(broken)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as raised:
        resolve(
            ResolveRequest(
                overrides=[
                    "+config_paths=[broken.yaml]",
                    "~weather_agent.responses_api_agents.simple_agent.model_server",
                ],
                offline=True,
            ),
            host_facts(),
        )

    assert f"Error: {raised.value}" in [block.rstrip() for block in blocks(page, "text")]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_that_are_mentioned_exist_with_their_flags(page: Path) -> None:
    """Readers type commands from sentences too, and no other test runs those."""
    from nemo_gym.cli.parser import GROUPS, TOP_LEVEL_COMMANDS, build_parser

    unknown = []
    for command in COMMAND.findall(page.read_text(encoding="utf-8")):
        words = command.split()
        plain = [word for word in words if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        grouped = plain[:1] and plain[0] in GROUPS and plain[1:2]
        leaf = plain[:2] if grouped else plain[:1]
        if not leaf or "…" in words[: len(leaf)]:
            continue
        if leaf[0] not in (*GROUPS, *TOP_LEVEL_COMMANDS) or (grouped and leaf[1] not in GROUPS[leaf[0]][1]):
            unknown.append(command)
            continue
        parser: Any = build_parser(leaf)[0]
        for word in leaf:
            parser = next(action for action in parser._actions if action.dest in ("group", "command")).choices[word]
        flags = re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", command)
        unknown += [f"{flag} of gym {' '.join(leaf)}" for flag in flags if flag not in parser._option_string_actions]
    assert not unknown


def test_every_page_is_reachable_from_the_index() -> None:
    """Readers do not find a page without a link."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    assert not [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and page.name not in index
    ]


def test_every_page_is_in_the_navigation() -> None:
    """A page that the navigation leaves out is found by search only."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/-]+\.md", text[text.index("\nnav:") :]))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}

    assert listed == {page for page in pages if not re.match(r"decisions/\d", page)}


def test_coding_assistants_get_a_list_of_all_pages() -> None:
    """An assistant that reads `llms.txt` finds every page with a sentence about it, as Markdown."""
    text = docs_site.page_list("NeMo Gym", "Evaluate.", ROOT / "docs")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}

    assert {line.partition("](")[2].partition(")")[0] for line in text.splitlines() if line[:3] == "- ["} == pages
    assert "- [Install](install.md): NeMo Gym needs Python 3.11, 3.12 or 3.13 on Linux or macOS." in text


def test_the_site_contains_the_pages_as_markdown(tmp_path: Path) -> None:
    """The twin of a page is the page's source, byte for byte."""
    config = {"docs_dir": str(ROOT / "docs"), "site_dir": str(tmp_path), "site_name": "x", "site_description": "y"}
    docs_site.on_post_build(config)

    assert (tmp_path / "reference" / "errors.md").read_bytes() == (ROOT / "docs/reference/errors.md").read_bytes()
    assert (tmp_path / "llms.txt").read_text(encoding="utf-8").startswith("# x\n")
