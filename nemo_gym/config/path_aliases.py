"""Paths of earlier releases that still work.

This module imports no other module of this package, because `import nemo_gym` imports it.
"""

from pathlib import Path

RENAMED_FOLDERS = {
    f"resources_servers/{earlier}{old_subfolder}": f"resources_servers/example_single_tool_call{new_subfolder}"
    for earlier in ("simple_weather", "example_simple_weather")
    for old_subfolder, new_subfolder in (("/configs", "/configs/earlier_names"), ("", ""))
}
"""Earlier path -> current path; the more specific path comes first."""


def current_path(path: str | Path) -> Path | None:
    """Return the current form of a relative path of an earlier release, or None for any other path."""
    for earlier, current in RENAMED_FOLDERS.items():
        if Path(path).is_relative_to(earlier):
            return Path(current) / Path(path).relative_to(earlier)
    return None


def rename_notice(path: str | Path) -> str:
    """Return the notice for users of an earlier path. It names the folder, not the file inside it."""
    folder = Path(*Path(path).parts[:2])
    return f"{folder} is called {current_path(folder)} now; the earlier name still works"
