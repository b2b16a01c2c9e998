"""Write the first rows of the general knowledge benchmark: `python generate.py OUT --rows 40 --seed 0`."""

from typing import Any

from benchmarks.general_knowledge.prepare import rows as all_rows
from nemo_gym.data.generator_command import run_generator


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` questions; another seed orders their options differently."""
    questions = all_rows(seed)
    if count > len(questions):
        raise SystemExit(f"there are only {len(questions)} questions; asked for {count}")
    return questions[:count]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
