"""Documentation is code: its links resolve and its examples run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> Iterator[str]:
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        if found.group(1) == language:
            yield found.group(2)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    """A dead link is a page nobody finds."""
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]

    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_examples_run(page: Path) -> None:
    """The blocks of one page run in order, in one namespace, as a reader would type them."""
    namespace: dict[str, object] = {"__name__": "docs_example"}

    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_yaml_examples_parse(page: Path) -> None:
    """What is shown must at least be YAML."""
    for block in blocks(page, "yaml"):
        yaml.safe_load(block)


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
    from nemo_gym.config.resolve import Request, resolve
    from nemo_gym.errors import ServerRefNotFoundError
    from nemo_gym.global_config import surroundings

    page = ROOT / "docs" / "configuration.md"
    example = next(blocks(page, "yaml")).replace("name: weather}", "name: example_single_tool_call}")
    (tmp_path / "weather.yaml").write_text(example)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ServerRefNotFoundError) as raised:
        resolve(
            Request(
                overrides=[
                    "+config_paths=[weather.yaml]",
                    "~weather_agent.responses_api_agents.simple_agent.model_server",
                ],
                offline=True,
            ),
            surroundings(),
        )

    assert str(raised.value) in next(blocks(page, "text"))


def test_every_page_is_reachable_from_the_index() -> None:
    """A page nobody links to is not documentation."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    assert not [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and page.name not in index
    ]
