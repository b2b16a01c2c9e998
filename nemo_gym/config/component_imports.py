"""Import component folders of several trees: for each folder name, the first tree on `sys.path` that has it.

Python alone decides otherwise: a package with an `__init__.py` in a later tree hides a folder without one in an earlier
tree, and a `resources_servers/__init__.py` in an earlier tree hides every folder of the later ones.
`import nemo_gym` imports this module, so it imports little.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from nemo_gym.keys import COMPONENT_FOLDERS, SERVER_TYPES


class ComponentFinder:
    """A finder for `sys.meta_path` that finds packages such as `resources_servers` and their component folders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG004
        kind, _, component = name.partition(".")
        if kind not in COMPONENT_FOLDERS or "." in component:
            return None
        return _component_spec(name, path or ()) if component else _package_spec(kind)


def install_finder() -> None:
    """Let imports find component folders in every tree on `sys.path`, also in packages that are loaded already."""
    if ComponentFinder not in sys.meta_path:
        sys.meta_path.insert(0, ComponentFinder)
    for kind in COMPONENT_FOLDERS:
        module = sys.modules.get(kind)
        if module is not None and hasattr(module, "__path__"):
            module.__path__ = list(dict.fromkeys([*_package_folders(kind), *module.__path__]))


@contextmanager
def first_on_path(package: ModuleType, folder: Path) -> Iterator[None]:
    """Import from `folder` before the other folders of a package such as `resources_servers`."""
    path = list(package.__path__)
    package.__path__ = [str(folder), *path]
    try:
        yield
    finally:
        package.__path__ = list(dict.fromkeys([*path, str(folder)]))


def _package_folders(kind: str) -> list[str]:
    """Return the folders of a kind, in the order of `sys.path`.

    A user's own module `environments.py` or `benchmarks.py` that comes first stays what these names mean.
    """
    folders: list[str] = []
    for entry in sys.path:
        folder = Path(entry or ".", kind)
        if folder.is_dir():
            folders.append(str(folder.absolute()))
        elif not folders and kind not in SERVER_TYPES and folder.with_suffix(".py").is_file():
            return []
    return list(dict.fromkeys(folders))


def _package_spec(kind: str) -> ModuleSpec | None:
    folders = _package_folders(kind)
    if not folders:
        return None
    init = Path(folders[0], "__init__.py")
    if init.is_file():
        return spec_from_file_location(kind, init, submodule_search_locations=folders)
    spec = ModuleSpec(kind, None, is_package=True)
    spec.submodule_search_locations = folders
    return spec


def _component_spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Return the spec of the first folder with code; a folder with data only does not replace a component."""
    specs = [spec for entry in path if (spec := PathFinder.find_spec(name, [entry])) is not None]
    for spec in specs:
        if not spec.has_location:  # a folder without __init__.py: pin it, or later trees would be merged into it
            spec.submodule_search_locations = list(spec.submodule_search_locations or ())
    return next(filter(_has_code, specs), next(iter(specs), None))


def _has_code(spec: ModuleSpec) -> bool:
    folders = spec.submodule_search_locations or ()
    return spec.has_location or any(file for folder in folders for file in Path(folder).glob("*.py"))
