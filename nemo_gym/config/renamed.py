"""Folders that had another name in earlier releases and in the documents people still follow."""

from pathlib import Path

RENAMED = {
    f"resources_servers/{earlier}{inside}": f"resources_servers/example_single_tool_call{now}"
    for earlier in ("simple_weather", "example_simple_weather")
    for inside, now in (("/configs", "/configs/earlier_names"), ("", ""))
}
"""Earlier path -> where it is now; what is more specific comes first."""


def current_path(path: str | Path) -> Path | None:
    """Where a relative path of an earlier release is now; None for every other path."""
    asked = Path(path)
    for earlier, now in RENAMED.items():
        if asked.is_relative_to(earlier):
            return Path(now) / asked.relative_to(earlier)
    return None


def rename_note(path: str | Path) -> str:
    """One sentence for whoever used an earlier name: the folder's, whatever was asked for inside it."""
    parts = Path(path).parts
    folder = Path(*parts[:2])
    return f"{folder} is called {current_path(folder)} now; the earlier name still works"
