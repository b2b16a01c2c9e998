"""The base classes of explained failures."""

import errno
import pickle
import re

import pytest

from nemo_gym import errors
from nemo_gym.errors import ConfigError, FileProblem, GymError, raising_file_problems

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GymError)]


def test_the_tree_in_the_docstring_is_complete():
    """The module promises to draw its classes; a missing one cannot be found by reading."""
    names = set(re.findall(r"(?:── |^)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE))

    assert {cls.__name__ for cls in CLASSES} <= names


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_pickling(cls):
    """Errors cross process boundaries between cells and the collector."""
    error = pickle.loads(pickle.dumps(cls("problem", where="file:1", fix="do this")))

    assert type(error) is cls
    assert str(error) == "file:1: problem\n  try: do this"


def test_a_missing_file_is_a_file_problem_with_its_name(tmp_path):
    """A traceback about a file helps no user."""
    with pytest.raises(FileProblem) as caught, raising_file_problems():
        (tmp_path / "gone").read_text()

    assert str(caught.value) == f"{tmp_path / 'gone'}: No such file or directory"
    assert caught.value.exit_status == 3
    assert isinstance(caught.value, OSError)


def test_a_full_disk_is_a_file_problem_although_the_system_names_no_file():
    """`write` fails without a file name."""
    with pytest.raises(FileProblem, match="No space left") as caught, raising_file_problems():
        raise OSError(errno.ENOSPC, "No space left on device")

    assert caught.value.fix == "free space on this disk, or choose a path on another one"


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), ConfigError("x"), FileProblem("x")])
def test_other_errors_pass_unchanged(error):
    """A lost connection is no problem of a file, and explained errors stay what they are."""
    with pytest.raises(type(error)) as caught, raising_file_problems():
        raise error

    assert caught.value is error
