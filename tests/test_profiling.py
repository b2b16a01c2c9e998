"""A server's profile: figures always, a picture if it can be drawn."""

import sys
import time
from types import ModuleType

import pytest
from fastapi import FastAPI

from nemo_gym.errors import ConfigError
from nemo_gym.profiling import Profiler
from nemo_gym.serve import profiling
from nemo_gym.transport.in_process import dispatch


class FakeStats:
    def __init__(self, names):
        self.names = names

    def sort(self, column, order):
        self.names.sort()

    def print_all(self, out, columns):
        out.write("\n".join(self.names))

    def save(self, path, **options):
        with open(path, "w") as stream:
            stream.write(options["type"])


@pytest.fixture
def calls(monkeypatch):
    """A stand-in for yappi that records the calls."""
    commands = []
    module = ModuleType("yappi")

    class Stat:
        def __init__(self, full_name):
            self.full_name = full_name

    def get_func_stats(filter_callback=None):
        stats = [Stat("mine.verify"), Stat("theirs.parse")]
        return FakeStats([s.full_name for s in stats if filter_callback is None or filter_callback(s)])

    module.clear_stats = lambda: commands.append("clear")
    module.set_clock_type = lambda kind: commands.append(kind)
    module.start = lambda: commands.append("start")
    module.stop = lambda: commands.append("stop")
    module.get_func_stats = get_func_stats
    monkeypatch.setitem(sys.modules, "yappi", module)
    monkeypatch.setattr(profiling.importlib.util, "find_spec", lambda name: None)
    return commands


def test_a_profile_counts_cpu_time_and_writes_figures(calls, tmp_path):
    """Without the drawing programs the figures are still there."""
    profiler = Profiler(name="sums/v1", base_profile_dir=tmp_path / "new", required_str="mine")

    profiler.start()
    profiler.stop()

    assert calls == ["clear", "CPU", "start", "stop"]
    assert (tmp_path / "new" / "sums_v1.log").read_text() == "mine.verify"
    assert (tmp_path / "new" / "sums_v1.callgrind").read_text() == "callgrind"


@pytest.mark.asyncio
async def test_a_served_app_is_profiled_from_start_to_end(calls, tmp_path):
    """`GET /stats` gives the figures so far; the last ones are written when the server stops."""
    app = FastAPI()
    profiling.setup_profiling(app, "sums", tmp_path)

    async with app.router.lifespan_context(app):
        assert calls == ["clear", "CPU", "start"]
        answer = await dispatch(app, "GET", "http://sums.local/stats")
        assert "theirs.parse" in await answer.text()
        (tmp_path / "sums.log").unlink()

    assert calls[-1] == "stop"
    assert (tmp_path / "sums.log").exists()


def test_profiling_without_a_folder_is_a_clear_error(calls):
    """The error comes when the server starts, not when the result is read."""
    with pytest.raises(ConfigError, match=r"sums: profiling_enabled is set.*\n.*profiling_results_dirpath"):
        profiling.setup_profiling(FastAPI(), "sums", None)


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    """The user must not have to guess what to install."""
    monkeypatch.setitem(sys.modules, "yappi", None)

    with pytest.raises(ConfigError, match=r"nemo-gym\[profiling\]"):
        Profiler("sums", tmp_path).start()


def test_a_drawing_program_that_fails_costs_only_the_picture(tmp_path, caplog):
    """Graphviz on a cluster node is a lottery."""
    assert profiling._run_program([sys.executable, "-c", "raise SystemExit(3)"]) is False
    assert profiling._run_program([str(tmp_path / "no-such-program")]) is False
    assert caplog.text.count("no call graph") == 2


def test_the_real_profiler_sees_our_functions(tmp_path):
    """The stand-in above is only as good as our reading of yappi."""
    pytest.importorskip("yappi")

    def busy_work():
        end = time.process_time() + 0.02
        while time.process_time() < end:
            sum(range(1000))

    profiler = Profiler("real", tmp_path, required_str="busy_work")
    profiler.start()
    busy_work()
    profiler.stop()

    assert "busy_work" in (tmp_path / "real.log").read_text()
    assert "busy_work" in (tmp_path / "real.callgrind").read_text()
