"""`_inherit_from`, `_copy`, `_delete_key` and their text forms."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config.inheritance import Expansion
from nemo_gym.errors import InheritPathNotFoundError


def expand(tree):
    expanded = Expansion(tree)
    assert [problem.what for problem in expanded.problems] == []
    return expanded.tree


def problems(tree) -> list[str]:
    return [problem.what for problem in Expansion(tree).problems]


def test_an_inheriting_block_extends_its_source_and_the_source_is_removed():
    """A benchmark takes over a generic server; starting the generic one as well would waste a process."""
    tree = {"generic": {"x": 1, "deep": {"a": 1, "b": 2}}, "mine": {"_inherit_from": "generic", "deep": {"b": 3}}}

    assert expand(tree) == {"mine": {"x": 1, "deep": {"a": 1, "b": 3}}}


def test_a_copied_source_stays():
    """A server that others copy still runs itself."""
    assert expand({"a": {"x": 1}, "b": {"_copy": "a", "y": 2}}) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_several_blocks_may_inherit_from_one_source():
    """Removing the source after its first use would break every further benchmark built on it."""
    tree = {"a": {"x": 1}, "b": {"_inherit_from": "a"}, "c": {"_inherit_from": "a", "x": 2}}

    assert expand(tree) == {"b": {"x": 1}, "c": {"x": 2}}


def test_copied_values_are_independent():
    """A change to one server must not silently change the servers that copied the same block."""
    result = expand({"a": {"x": [1]}, "b": {"_copy": "a"}, "c": {"_copy": "a"}})

    result["b"]["x"].append(2)

    assert result["a"] == result["c"] == {"x": [1]}


def test_directives_inside_a_source_are_expanded_in_any_order():
    """The existing implementation leaves them in the result, where a server reads them as settings."""
    tree = {"c": {"_copy": "b"}, "b": {"y": {"_copy": "a"}, "z": "${copy:a.x}"}, "a": {"x": 1}}

    result = expand(tree)

    assert result["c"] == result["b"] == {"y": {"x": 1}, "z": 1}


def test_a_chain_of_inheritance_collects_every_key():
    """A variant of a variant must not lose the settings of the first block."""
    tree = {"a": {"x": 1}, "b": {"_inherit_from": "a", "y": 2}, "c": {"_inherit_from": "b", "z": 3}}

    assert expand(tree) == {"c": {"x": 1, "y": 2, "z": 3}}


def test_a_path_may_lead_through_an_inheriting_block():
    """An author should not need to know which block wrote the value first."""
    tree = {"a": {"x": {"k": 1}}, "b": {"_copy": "a"}, "c": {"_copy": "b.x"}}

    assert expand(tree)["c"] == {"k": 1}


def test_text_forms_and_directives_in_lists_are_expanded():
    """Published configs use both; an unexpanded one would reach the server as literal text."""
    tree = {"a": {"x": 1}, "l": [{"_copy": "a", "y": 2}, "${copy:a}"], "moved": "${inherit_from:b}", "b": [1, 2]}

    assert expand(tree) == {"a": {"x": 1}, "l": [{"x": 1, "y": 2}, {"x": 1}], "moved": [1, 2]}


def test_keys_are_deleted_from_inherited_blocks():
    """A benchmark must be able to drop a setting of the generic server that does not apply to it."""
    tree = {"a": {"x": 1, "y": 2, "z": 3}, "b": {"_inherit_from": "a", "_delete_key": "x, z", "z": 9}}

    assert expand(tree) == {"b": {"y": 2, "z": 3}}


def test_deleting_a_missing_key_is_a_problem():
    """A misspelt key would otherwise leave the unwanted setting in place unnoticed."""
    assert problems({"a": {"x": 1}, "b": {"_inherit_from": "a", "_delete_key": "q"}}) == [
        "_delete_key: the block has no key 'q'"
    ]


def test_a_block_that_inherits_an_unset_value_is_unset_too():
    """The user is then asked for the missing value, not confused by a path error."""
    assert expand({"a": "???", "b": {"_copy": "a.x"}}) == {"a": "???", "b": "???"}


def test_a_missing_source_is_reported_with_similar_names():
    """A misspelt path is fixed faster if the error suggests the right one."""
    expanded = Expansion({"simple": {"agent": {"x": 1}}, "b": {"_inherit_from": "simple.agnet"}})

    (problem,) = expanded.problems
    assert problem.kind is InheritPathNotFoundError
    assert problem.what.startswith(
        "_inherit_from names 'simple.agnet', which does not exist — did you mean 'simple.agent'"
    )
    assert problem.path == ("b", "_inherit_from")


@pytest.mark.parametrize(
    "tree",
    [
        {"a": {"_inherit_from": "a"}},
        {"a": {"_copy": "b"}, "b": {"_copy": "c"}, "c": {"_copy": "a"}},
        {"a": {"x": {"_copy": "b"}}, "b": {"y": {"_copy": "a"}}},
        {"a": {"b": {"_copy": "a"}}},
        {"a": "${copy:b}", "b": "${copy:a}"},
    ],
)
def test_cycles_are_reported_once(tree):
    """A cycle must neither hang the command nor repeat one mistake for every block in it."""
    (text,) = problems(tree)

    assert "cyclic inheritance" in text


def test_a_long_chain_is_an_error_and_not_a_stack_overflow():
    """A user cannot act on a RecursionError; the message states the limit."""
    tree = {"n0": {"x": 1}, **{f"n{i}": {"_copy": f"n{i - 1}"} for i in range(1, 400)}}

    assert problems(dict(reversed(tree.items())))[0].startswith("inheritance is more than 50 steps long")


def test_copies_that_multiply_are_refused_quickly():
    """A config of 40 short blocks could otherwise use up all memory before any error."""
    tree = {"n0": {"x": 1}}
    for i in range(1, 40):
        tree[f"n{i}"] = {"left": {"_copy": f"n{i - 1}"}, "right": {"_copy": f"n{i - 1}"}}
    started = time.process_time()

    assert any("values" in text for text in problems(tree))

    assert time.process_time() - started < 10


@pytest.mark.parametrize("wrong", [None, 5, "", ["a"], {"a": 1}])
def test_a_directive_without_a_path_is_a_problem(wrong):
    """An empty or mistyped directive would otherwise be ignored and the server start half configured."""
    assert "needs a dotted path" in problems({"b": {"_copy": wrong}})[0]


def test_the_original_tree_is_not_changed():
    """Errors are located in the tree as written, which must therefore survive the expansion."""
    tree = {"a": {"x": 1}, "b": {"_inherit_from": "a"}}

    expand(tree)

    assert tree == {"a": {"x": 1}, "b": {"_inherit_from": "a"}}


names = st.sampled_from(["a", "b", "c", "a.x", "b.x", "a.x.y", "", "zz", "???"])
node = st.recursive(
    st.integers() | st.sampled_from(["???", "${copy:a}", "${inherit_from:b.x}", "${a}", "t"]),
    lambda inner: (
        st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3)
        | st.builds(
            lambda d, w, p: {**d, w: p},
            st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
            st.sampled_from(["_copy", "_inherit_from", "_delete_key"]),
            names,
        )
        | st.lists(inner, max_size=2)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "_copy"]), node, max_size=4))
def test_expanding_any_tree_terminates(tree):
    """No config hangs the command: the result has no dictionary directive left, or there are problems."""
    expanded = Expansion(tree)

    def has_directive(value):
        if isinstance(value, dict):
            return any(key in ("_copy", "_inherit_from") or has_directive(item) for key, item in value.items())
        return isinstance(value, list) and any(map(has_directive, value))

    assert expanded.problems or not has_directive(expanded.tree)
