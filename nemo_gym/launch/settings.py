"""Configuration keys of this package, read once and checked."""

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.checks import read_key
from nemo_gym.config.search_roots import CACHE_DIR, WORKING_DIR

ENDPOINT_TIMEOUT_KEY = "model_endpoint_readiness_timeout_seconds"


@dataclass(frozen=True)
class LaunchSettings:
    """Settings for starting servers."""

    cells: int | None
    """Number of cells; None if the command decides."""
    port_range: tuple[int, int]
    log_dir: Path | None
    endpoint_timeout: float
    """Seconds to wait for model endpoints; they are not checked if it is 0 or less."""
    dry_run: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "LaunchSettings":
        """Read the settings of a resolved configuration.

        Raises:
            ConfigError: a value has the wrong type.
        """
        log_dir = config.get("nemo_gym_log_dir")
        return cls(
            cells=read_key(config, "num_cells"),
            port_range=(read_key(config, "port_range_low"), read_key(config, "port_range_high")),
            log_dir=Path(log_dir) if log_dir else None,
            endpoint_timeout=float(read_key(config, ENDPOINT_TIMEOUT_KEY)),
            dry_run=bool(config.get("dry_run")),
        )


@dataclass(frozen=True)
class VenvSettings:
    """Settings for building virtual environments."""

    shared: Path
    """Folder of the virtual environments that servers share."""
    per_server: Path | None = None
    """`uv_venv_dir` if it is set: each server then has `<type>/<name>/.venv` below it."""
    cache: Path | None = None
    """`uv_cache_dir` if it is set."""
    python: str = sys.executable
    """The interpreter of servers that require no specific version."""
    python_version: str = platform.python_version()
    skip_if_present: bool = False
    verbose: bool = False
    required: tuple[str, ...] = ()
    """Requirements that are installed in every virtual environment."""
    constraints: tuple[str, ...] = ()
    """Versions of packages, for the virtual environments that contain the package."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "VenvSettings":
        """Read the settings of a resolved configuration; a key with its computed default counts as unset."""
        cache_dir = Path(config.get("cache_dir") or CACHE_DIR)
        venv_dir, uv_cache = config.get("uv_venv_dir"), config.get("uv_cache_dir")
        version = str(config.get("python_version") or platform.python_version())
        pins = [str(pin) for pin in config.get("head_server_deps") or ()]
        # With a Ray cluster every server connects to Ray; without one the version matters only to servers that use it.
        required = [pin for pin in pins if config.get("ray_head_node_address") and pin.startswith("ray")]
        return cls(
            shared=cache_dir / "venvs",
            per_server=Path(venv_dir) if venv_dir and Path(venv_dir) != WORKING_DIR else None,
            cache=Path(uv_cache) if uv_cache and Path(uv_cache) != cache_dir / "uv" else None,
            python=sys.executable if version == platform.python_version() else version,
            python_version=version,
            skip_if_present=bool(config.get("skip_venv_if_present")),
            verbose=bool(config.get("pip_install_verbose")),
            required=tuple(required),
            constraints=tuple(re.sub(r"\[.*\]", "", pin) for pin in pins if pin not in required),
        )
