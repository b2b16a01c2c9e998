"""YAML as OmegaConf reads it, and clear errors for unacceptable YAML."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.config.yaml_text import MAX_DEPTH, read_yaml
from nemo_gym.errors import ConfigError


def value(text: str):
    return read_yaml(text, "x.yaml").value


@pytest.mark.parametrize(
    "text",
    [
        "a: 1e-9",
        "a: 1.5\nb: .5\nc: -1\nd: 0x1f\ne: 010\nf: 1_000",
        "a: .inf\nb: -.inf",
        "a: 2024-01-01\nb: 12:30:45",
        "a: yes\nb: off\nc: True\nd: 'yes'\ne: y",
        "a: null\nb: ~\nc:\nd: ''",
        "a: 0.0.1\nb: 1e5x",
        "a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}",
        "d: {<<: [{a: 1}, {a: 2, b: 3}], b: 4}",
        "a: |\n  text\n  more\nb: >\n  folded\n  text",
        "2: a\ntrue: b\n1.5: c",
        "a: !!str 5\nb: !!int '7'\nc: !!float 1",
        "{a: [1, {b: c}], 'd e': f}",
        'a: "\\u00e9\\n"',
    ],
)
def test_scalars_are_read_as_omegaconf_reads_them(text):
    """A config that reads `1e-9` as text or `off` as true would change an experiment silently."""
    assert value(text) == OmegaConf.to_container(OmegaConf.create(text))


def test_an_empty_file_is_an_empty_configuration():
    """A user who comments out everything should not get an error about a missing mapping."""
    assert value("") == value("# only a comment\n") == value("---\n") == {}


def error_text(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        value(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2", "x.yaml:2:4: 'a' is given twice with different values"),
        ("a:\n\tb: 1", "x.yaml:2:1: a tab is used for indentation\n  try: indent with spaces"),
        ("a: [1, 2", "x.yaml:1:4: not valid YAML"),
        ("a: 'x", "x.yaml:1:"),
        ("a: b: c", "x.yaml:1:5: not valid YAML"),
        ("a: *nobody", "x.yaml:1:4: not valid YAML: found undefined alias"),
        ("a: &x [*x]", "x.yaml:1:4: aliases nest values more than 64 levels deep"),
        (
            "a: !!python/object:os.system x",
            "x.yaml:1:4: tag 'tag:yaml.org,2002:python/object:os.system' is not allowed",
        ),
        ("a: !mine {b: c}", "tag '!mine' is not allowed"),
        ("[a, b]: c", "a key must be plain text"),
        ("? {a: b}\n: c", "a key must be plain text"),
        ("null: c", "a key must be plain text"),
        ("a: 1\n---\nb: 2", "contains several YAML documents"),
        ("a: " + "9" * 5000, "is not a valid int"),
        ("a: 0x" + "f" * 5000, "is not a valid int"),
        ("<<: 3", "'<<' merges mappings only"),
        ("a: \x07", "x.yaml:1"),
    ],
)
def test_bad_yaml_is_one_clear_error_with_its_position(text, expected):
    """The user needs the line to fix; a tag that could run code must never be accepted."""
    assert expected in error_text(text)


def test_the_same_key_twice_with_the_same_value_is_reported_not_refused():
    """The seed README's own example repeats `license: Apache 2.0`."""
    text = read_yaml("license: MIT\nname: x\nlicense: MIT\n", "x.yaml")

    assert text.value == {"license": "MIT", "name": "x"}
    assert text.warnings == ("x.yaml:3: 'license' is given twice with the same value",)


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000, "a:\n- - " + "- " * 9999])
def test_extreme_nesting_is_refused_quickly(text):
    """A damaged file would otherwise crash the interpreter or use minutes of processor time."""
    started = time.process_time()

    assert f"nested more than {MAX_DEPTH} levels" in error_text(text)

    assert time.process_time() - started < 5


def test_aliases_that_multiply_are_refused():
    """Nine short lines can mean a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]

    assert "including those repeated by aliases" in error_text("\n".join(lines))


def test_positions_cover_keys_and_list_elements():
    """Every later error about a value shows the line it comes from; a gap would show none."""
    marks = {}

    read_yaml("a:\n  - b: 1\n    c: 2\n  - x\n", "x.yaml", marks=marks)

    assert marks == {("a",): (1, 1), ("a", 0): (2, 5), ("a", 0, "b"): (2, 5), ("a", 0, "c"): (3, 5), ("a", 1): (4, 5)}


LETTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"], exclude_characters="$")
"""Not what PyYAML cannot write so that it is read back (line separators), nor what OmegaConf interprets."""

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(LETTERS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(LETTERS, max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text("abcdef_", min_size=1), plain, max_size=5))
def test_what_omegaconf_writes_is_read_back_unchanged(tree):
    """A child process gets its configuration this way."""
    assert value(OmegaConf.to_yaml(OmegaConf.create(tree))) == tree


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:-[]{}'\"&*!|>%@`#?,\n\t \\0.~<=", max_size=60))
def test_any_text_is_data_or_a_config_error(text):
    """A half-edited file must never show a traceback of the YAML parser."""
    try:
        value(text)
    except ConfigError as error:
        assert "x.yaml" in str(error)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60))
def test_any_unicode_is_data_or_a_config_error(text):
    """Configs contain pasted text in any script; no character may crash the command."""
    try:
        value(text)
    except ConfigError as error:
        assert "x.yaml" in str(error)
