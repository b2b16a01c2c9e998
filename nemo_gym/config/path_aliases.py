"""Paths of earlier releases that still work.

Without imports of ours, because `import nemo_gym` loads this module.
"""

from pathlib import Path

RENAMED_FOLDERS = {
    f"resources_servers/{earlier}{inside}": f"resources_servers/example_single_tool_call{now}"
    for earlier in ("simple_weather", "example_simple_weather")
    for inside, now in (("/configs", "/configs/earlier_names"), ("", ""))
}
"""Earlier path -> current path; the more specific path comes first."""


def current_path(path: str | Path) -> Path | None:
    """Return the current form of a relative path of an earlier release, or None for any other path."""
    for earlier, now in RENAMED_FOLDERS.items():
        if Path(path).is_relative_to(earlier):
            return Path(now) / Path(path).relative_to(earlier)
    return None


def rename_notice(path: str | Path) -> str:
    """Return the sentence for users of an earlier path. It names the folder, whatever the path inside it."""
    folder = Path(*Path(path).parts[:2])
    return f"{folder} is called {current_path(folder)} now; the earlier name still works"
