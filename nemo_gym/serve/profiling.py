"""CPU profiles of a server, measured by yappi and written to files on request.

Needs the extra `nemo-gym[profiling]`. The picture of the call graph also needs `dot` of graphviz; without it, all other
files are still written.
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
MIN_PERCENT = "5"
"""Functions and calls below this percentage of the time are omitted from the graph."""


@dataclass
class Profiler:
    """CPU profiler of this process: call `start`, `dump` any number of times, then `stop`."""

    name: str
    """Base name of the files."""
    base_profile_dir: str | Path
    """Folder of the files; created if missing."""
    required_str: str | None = None
    """If set, list only functions whose full name contains this text."""

    def start(self) -> None:
        """Reset the statistics and start profiling.

        Raises:
            ConfigError: yappi is not installed.
        """
        yappi = _yappi()
        yappi.clear_stats()
        yappi.set_clock_type("CPU")
        yappi.start()

    def stop(self) -> None:
        """Stop profiling and write the files."""
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
        self._draw_call_graph(callgrind)
        return log

    def _path(self, ending: str) -> Path:
        return Path(self.base_profile_dir) / f"{self.name.replace('/', '_')}{ending}"

    def _is_listed(self, stat: Any) -> bool:
        return (self.required_str or "") in stat.full_name

    def _draw_call_graph(self, callgrind: Path) -> None:
        """Write the call graph as `.dot` and `.png`; log a warning if a program is missing."""
        dot = shutil.which("dot")
        if importlib.util.find_spec("gprof2dot") is None:
            logger.warning("no call graph of %s: gprof2dot is missing (pip install '%s')", self.name, EXTRA)
            return
        graph = self._path(".dot")
        thresholds = ["--node-thres", MIN_PERCENT, "--edge-thres", MIN_PERCENT]
        options = ["--format=callgrind", *thresholds, "--output", str(graph)]
        if not _run_program([sys.executable, "-m", "gprof2dot", *options, str(callgrind)]):
            return
        if dot is None:
            logger.warning("no picture of %s: the program 'dot' (graphviz) is not on the path", graph)
            return
        _run_program([dot, "-Tpng", str(graph), "-o", str(self._path(".png"))])


def setup_profiling(app: FastAPI, name: str, results_dirpath: str | Path | None) -> None:
    """Profile a server while it runs; `GET /stats` writes the files and answers with the log.

    Raises:
        ConfigError: no folder is configured, or yappi is not installed.
    """
    if not results_dirpath:
        raise ConfigError(
            "profiling_enabled is set, but profiling_results_dirpath is not",
            where=name,
            fix="+profiling_results_dirpath=<folder>",
        )
    _yappi()
    profiler = Profiler(name=name, base_profile_dir=results_dirpath)
    inner_lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def profiling_lifespan(running_app: Any) -> AsyncIterator[Any]:
        profiler.start()
        try:
            async with inner_lifespan(running_app) as state:
                yield state
        finally:
            profiler.stop()

    def stats() -> PlainTextResponse:
        """Write the current profile and return its log."""
        return PlainTextResponse(profiler.dump().read_text(encoding="utf-8"))

    app.router.lifespan_context = profiling_lifespan
    app.get("/stats", include_in_schema=False)(stats)


def _yappi() -> ModuleType:
    try:
        return importlib.import_module("yappi")
    except ImportError:
        raise ConfigError("profiling needs the package yappi", fix=f"pip install '{EXTRA}'") from None


def _run_program(command: list[str]) -> bool:
    """Run a program that draws the graph; return False and log a warning if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=DRAWING_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("no call graph: %s", error)
        return False
    return True
