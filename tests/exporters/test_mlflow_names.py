"""Names of ours become names MLflow takes, and stay apart."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.exporters.mlflow_exporter import LONGEST_NAME, elide, flatten, mlflow_name, mlflow_names


def test_metric_names_stay_readable() -> None:
    """People look for `pass@1` on a page that cannot show `@`."""
    assert mlflow_name("pass@1[avg-of-4]/accuracy") == "pass_at_1_avg-of-4_/accuracy"
    assert mlflow_name("key_metrics/my agent/mean/reward") == "key_metrics/my agent/mean/reward"


def test_long_names_keep_their_beginning_and_their_end() -> None:
    """The end of a dotted path says what the value is."""
    name = mlflow_name("begin." + "x" * 400 + ".end")

    assert len(name) == LONGEST_NAME
    assert name.startswith("begin.")
    assert name.endswith(".end")
    assert "___" in name


def test_names_that_would_become_one_are_numbered() -> None:
    """Otherwise one metric would silently overwrite another."""
    assert mlflow_names(["a[b", "a]b", "a_b"]) == {"a[b": "a_b", "a]b": "a_b_2", "a_b": "a_b_3"}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=300), unique=True, max_size=20))
def test_any_names_become_valid_and_distinct(names: list[str]) -> None:
    """MLflow refuses a whole batch for one bad name."""
    chosen = mlflow_names(names)

    assert len(set(chosen.values())) == len(names)
    for name in chosen.values():
        assert re.fullmatch(r"[\w\-. :/]{1,250}", name, re.ASCII)
        assert not any(step in ("", ".", "..") for step in name.split("/"))


def test_a_configuration_is_flattened_to_its_leaves() -> None:
    """Parameters are compared between runs one by one."""
    tree = {"a": {"b": 1, "c": {}}, "d": [1, 2], "e": [{"f": 3}, 4]}

    assert dict(flatten(tree)) == {"a.b": 1, "a.c": {}, "d": [1, 2], "e.0.f": 3, "e.1": 4}


def test_short_texts_are_left_alone() -> None:
    """Eliding is for what does not fit."""
    assert elide("short", 5) == "short"
    assert elide("longer than that", 9) == "lon___hat"
