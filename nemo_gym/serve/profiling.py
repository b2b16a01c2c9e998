"""CPU profiles of a server, measured by yappi and written to files on demand.

Needs the extra `nemo-gym[profiling]`; the call graph also needs graphviz's `dot`. Without that only the graph is
missing, never the figures.
"""

import importlib
import importlib.util
import logging
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from nemo_gym.errors import ConfigError

logger = logging.getLogger("nemo_gym.serve")

EXTRA = "nemo-gym[profiling]"
COLUMNS = {0: ("name", 200), 1: ("ncall", 12), 2: ("tsub", 10), 3: ("ttot", 10), 4: ("tavg", 10)}
DRAWING_SECONDS = 60.0
SMALLEST_SHARE = "5"
"""Percent of the time below which a function or a call is left out of the graph."""


@dataclass
class Profiler:
    """A CPU profile of this process: `start`, `dump` any number of times, `stop`."""

    name: str
    """Name of the files."""
    base_profile_dir: str | Path
    """Folder of the files; created when needed."""
    required_str: str | None = None
    """List only functions whose full name contains this."""

    def start(self) -> None:
        """Start counting from zero.

        Raises:
            ConfigError: yappi is not installed.
        """
        yappi = _yappi()
        yappi.clear_stats()
        yappi.set_clock_type("CPU")
        yappi.start()

    def stop(self) -> None:
        """Stop counting and write the profile."""
        _yappi().stop()
        self.dump()

    def dump(self) -> Path:
        """Write `.log`, `.callgrind` and, if the tools are installed, `.dot` and `.png`; return the path of the log."""
        folder = Path(self.base_profile_dir)
        folder.mkdir(parents=True, exist_ok=True)
        log, callgrind = self._path(".log"), self._path(".callgrind")
        stats = _yappi().get_func_stats(filter_callback=self._is_listed if self.required_str else None)
        stats.sort("ttot", "desc")
        with log.open("w", encoding="utf-8") as stream:
            stats.print_all(out=stream, columns=COLUMNS)
        stats.save(str(callgrind), type="callgrind")
        self._draw(callgrind)
        return log

    def _path(self, ending: str) -> Path:
        return Path(self.base_profile_dir) / f"{self.name.replace('/', '_')}{ending}"

    def _is_listed(self, stat: Any) -> bool:
        return (self.required_str or "") in stat.full_name

    def _draw(self, callgrind: Path) -> None:
        dot = shutil.which("dot")
        if importlib.util.find_spec("gprof2dot") is None:
            logger.warning("no call graph of %s: gprof2dot is missing (pip install '%s')", self.name, EXTRA)
            return
        graph = self._path(".dot")
        share = ["--node-thres", SMALLEST_SHARE, "--edge-thres", SMALLEST_SHARE]
        options = ["--format=callgrind", *share, "--output", str(graph)]
        if not _succeeds([sys.executable, "-m", "gprof2dot", *options, str(callgrind)]):
            return
        if dot is None:
            logger.warning("no picture of %s: the program 'dot' (graphviz) is not on the path", graph)
            return
        _succeeds([dot, "-Tpng", str(graph), "-o", str(self._path(".png"))])


def setup_profiling(app: FastAPI, name: str, results_dirpath: str | Path | None) -> None:
    """Profile the server from its start to its end; `GET /stats` writes the files and answers with the log.

    Raises:
        ConfigError: no folder is configured, or yappi is not installed.
    """
    if not results_dirpath:
        raise ConfigError(
            "profiling_enabled is set, but no folder for the results",
            where=name,
            fix="+profiling_results_dirpath=<folder>",
        )
    _yappi()
    profiler = Profiler(name=name, base_profile_dir=results_dirpath)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def profiling_lifespan(running: Any) -> AsyncIterator[Any]:
        profiler.start()
        try:
            async with inner(running) as state:
                yield state
        finally:
            profiler.stop()

    def stats() -> PlainTextResponse:
        """Write the profile so far."""
        return PlainTextResponse(profiler.dump().read_text(encoding="utf-8"))

    app.router.lifespan_context = profiling_lifespan
    app.get("/stats", include_in_schema=False)(stats)


def _yappi() -> ModuleType:
    try:
        return importlib.import_module("yappi")
    except ImportError:
        raise ConfigError("profiling needs the package yappi", fix=f"pip install '{EXTRA}'") from None


def _succeeds(command: list[str]) -> bool:
    """Run a program that draws the graph; log a failure, because the figures are already written."""
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=DRAWING_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("no call graph: %s", error)
        return False
    return True
