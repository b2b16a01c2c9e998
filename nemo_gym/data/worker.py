"""A process that works on chunks: a fork, or `python -m nemo_gym.data.worker` with tasks on its standard input.

It answers on another stream and ends when its input does, so it never outlives the process that started it.
"""

import os
import pickle
import sys
from typing import BinaryIO

from nemo_gym.data.prepare import Prepared, Preparer
from nemo_gym.errors import GymError


def main() -> None:
    """Answer the tasks of the standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    work(sys.stdin.buffer, answers)


def work(tasks: BinaryIO, answers: BinaryIO) -> None:
    """Answer tasks until there are no more."""
    preparer = Preparer()
    while True:
        try:
            task = pickle.load(tasks)
        except EOFError:
            return
        try:
            answer: Prepared | Exception = preparer.prepare(task)
        except (GymError, OSError) as error:
            answer = error
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
