"""Import every module of the package."""

import importlib
import pkgutil

import nemo_gym

OPTIONAL_PACKAGES = frozenset({"torch", "transformers", "trl", "datasets"})


def import_all_modules() -> None:
    """Import every module, except programs, and modules that need an extra which is not installed."""
    for module in pkgutil.walk_packages(nemo_gym.__path__, "nemo_gym."):
        if ".inside" in module.name or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL_PACKAGES:
                raise
