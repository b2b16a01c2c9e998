"""Write the first rows of the general knowledge benchmark: `python generate.py OUT --rows 40 --seed 0`."""

from typing import Any

from benchmarks.general_knowledge.prepare import rows as all_rows
from nemo_gym.data.generated import write_generated


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` questions; another seed orders the options differently."""
    found = all_rows(seed)
    if count > len(found):
        raise SystemExit(f"there are only {len(found)} questions; asked for {count}")
    return found[:count]


def main() -> None:
    write_generated(rows, __doc__)


if __name__ == "__main__":
    main()
