"""Names on the command line lead to configuration files."""

from pathlib import Path

import pytest

from nemo_gym.catalog.component_names import (
    BENCHMARK,
    ENVIRONMENT,
    MODEL_TYPE,
    RESOURCES_SERVER,
    ComponentKind,
    config_file,
)
from nemo_gym.errors import ConfigError


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n")
    return path


@pytest.mark.parametrize(
    ("kind", "value", "relative"),
    [
        (ENVIRONMENT, "sums", "environments/sums/config.yaml"),
        (ENVIRONMENT, "sums/hard", "environments/sums/hard.yaml"),
        (BENCHMARK, "suite/part", "benchmarks/suite/part/config.yaml"),
        (RESOURCES_SERVER, "sums", "resources_servers/sums/configs/sums.yaml"),
        (MODEL_TYPE, "vllm_model/local", "responses_api_models/vllm_model/configs/local.yaml"),
        (MODEL_TYPE, "vllm_model/sub/x", "responses_api_models/vllm_model/configs/sub/x.yaml"),
    ],
)
def test_a_name_with_or_without_a_flavour_is_found(
    tmp_path: Path, kind: ComponentKind, value: str, relative: str
) -> None:
    """Users think in names, not in the layout of the tree."""
    expected = write(tmp_path / relative)

    assert config_file(kind, value, [tmp_path]) == expected.resolve()


def test_an_earlier_root_shadows_a_later_one(tmp_path: Path) -> None:
    """A user's copy of a component must win over the shipped one."""
    mine = write(tmp_path / "mine/environments/sums/config.yaml")
    write(tmp_path / "shipped/environments/sums/config.yaml")

    assert config_file(ENVIRONMENT, "sums", [tmp_path / "mine", tmp_path / "shipped"]) == mine.resolve()


def test_a_misspelt_name_gets_the_nearest_one(tmp_path: Path) -> None:
    """The right name saves the user a search."""
    write(tmp_path / "environments/arithmetic/config.yaml")

    with pytest.raises(ConfigError, match="unknown name 'arithmetik'") as raised:
        config_file(ENVIRONMENT, "arithmetik", [tmp_path])

    assert raised.value.fix == "arithmetic"
    assert raised.value.where == "--environment"


def test_a_name_like_nothing_gets_the_list(tmp_path: Path) -> None:
    """Without a similar name, the list of names is the best help."""
    write(tmp_path / "environments/arithmetic/config.yaml")
    write(tmp_path / "environments/weather/hard.yaml")

    with pytest.raises(ConfigError) as raised:
        config_file(ENVIRONMENT, "zzz", [tmp_path])

    assert raised.value.fix == "one of arithmetic, weather/hard; `gym list environments` shows all"


def test_names_of_resources_servers_and_benchmarks_select_an_environment(tmp_path: Path) -> None:
    """`gym list environments` shows components of all three kinds."""
    server = write(tmp_path / "resources_servers/quiz/configs/quiz.yaml")
    suite = write(tmp_path / "benchmarks/suite/config.yaml")

    assert config_file(ENVIRONMENT, "resources_servers/quiz", [tmp_path]) == server
    assert config_file(ENVIRONMENT, "suite", [tmp_path]) == suite
    with pytest.raises(ConfigError) as raised:
        config_file(ENVIRONMENT, "quiz", [tmp_path])
    assert raised.value.fix == "--environment resources_servers/quiz, or --resources-server quiz"


def test_a_manifest_is_not_offered_as_a_configuration(tmp_path: Path) -> None:
    """`arithmetic/manifest` cannot be run."""
    write(tmp_path / "environments/arithmetic/config.yaml")
    write(tmp_path / "environments/arithmetic/manifest.yaml")

    assert ENVIRONMENT.names([tmp_path]) == ["arithmetic"]


def test_a_name_in_several_roots_says_which_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A forgotten copy in the working directory would silently be used."""
    mine = write(tmp_path / "mine/environments/sums/config.yaml")
    theirs = write(tmp_path / "shipped/environments/sums/config.yaml")

    config_file(ENVIRONMENT, "sums", [tmp_path / "mine", tmp_path / "shipped"])

    assert caplog.messages == [f"using {mine}; not used: {theirs}"]


def test_an_unknown_name_is_a_usage_error(tmp_path: Path) -> None:
    """Scripts distinguish typing mistakes by exit status 2."""
    with pytest.raises(ValueError, match="unknown name 'sums'") as caught:
        config_file(ENVIRONMENT, "sums", [tmp_path])

    assert isinstance(caught.value, ConfigError)
    assert caught.value.exit_status == 2
