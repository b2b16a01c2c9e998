"""Run a server process: a cell of many instances, or one server folder as a script.

Forks of the zygote call `ServerBoot.run`; the interpreter of a virtual environment runs
`python -m nemo_gym.launch.server_process BOOT_FD REQUEST`.
"""

import json
import os
import runpy
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from nemo_gym import global_config, server_utils  # noqa: F401 - server_utils: every server needs it, loaded before the fork
from nemo_gym.config.secret_text import remember_secrets
from nemo_gym.errors import GymError
from nemo_gym.keys import CONFIG_PATH_ENV_VAR
from nemo_gym.launch.cell import CellSockets, run_cell
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.model_endpoints import adopt_limits
from nemo_gym.processes import exit_with_parent, json_descriptor
from nemo_gym.serve.process_status import own_status
from nemo_gym.serve.thread_handlers import watch_threads
from nemo_gym.serve.webserver import LISTEN_FD_ENV_VAR, READY_FD_ENV_VAR, report_ready
from nemo_gym.transport.run_token import RUN_TOKEN_ENV_VAR


class ServerBoot(BaseModel):
    """What a server process receives from the run: configuration, instances and the descriptors of open files."""

    config: dict[str, Any]
    instances: dict[str, Instance]
    listeners: dict[str, int]
    cell_listeners: list[int] = []
    """Descriptor of the link listener of each cell."""
    link_addresses: list[str] = []
    """Name of the link listener of each cell, then of the cell that each instance would have in quarantine."""
    limits: dict[str, list[tuple[int, int]]] = {}
    """Descriptors of the semaphores that limit the calls to each model endpoint: counter and page of shared memory."""
    secrets: list[str] = []
    """Values that are masked in every text that is shown or stored."""

    def with_descriptors(self, numbers: Mapping[int, int]) -> "ServerBoot":
        """Return a copy for a process in which the descriptors have other numbers; `numbers` maps old to new ones."""
        return self.model_copy(
            update={
                "listeners": {name: numbers[fd] for name, fd in self.listeners.items()},
                "cell_listeners": [numbers[fd] for fd in self.cell_listeners],
                "limits": {
                    name: [(numbers[counter], numbers[page]) for counter, page in group]
                    for name, group in self.limits.items()
                },
            }
        )

    def descriptors(self) -> list[int]:
        """Return every descriptor that a server process inherits."""
        limits = [number for group in self.limits.values() for pair in group for number in pair]
        return [*self.listeners.values(), *self.cell_listeners, *limits]

    def run(self, request: Mapping[str, Any], ready_fd: int, status_fd: int, link_fd: int | None = None) -> None:
        """Run the cell or the instance of the request until a signal; report a failed start to `ready_fd`.

        `status_fd` is the shared memory for the status of the process; `link_fd` is the link listener of a cell that
        was added during the run.
        """
        try:
            if "python" in request:
                self._execute(request, ready_fd, status_fd)
            own_status.share(status_fd)
            watch_threads()
            remember_secrets(self.secrets)
            config = global_config._GLOBAL_CONFIG_DICT = OmegaConf.create(self.config)
            if request["kind"] == "cell":
                self._run_cell(request, config, ready_fd, link_fd)
            else:
                self._run_alone(self.instances[request["instance"]], request.get("worker", 0), ready_fd)
        except GymError as problem:
            report_ready(ready_fd, failed=str(problem))
            raise SystemExit(problem.exit_status) from None

    def _execute(self, request: Mapping[str, Any], *passed: int) -> NoReturn:
        """Replace this process with the interpreter that the request names, which has its own packages; run `main`."""
        python, env = request["python"], request["env"]
        other_fields = {key: value for key, value in request.items() if key not in ("python", "env")}
        boot_fd = json_descriptor(self.model_dump(mode="json"))
        for descriptor in {boot_fd, *passed, *self.descriptors()}:
            os.set_inheritable(descriptor, True)
        arguments = [str(boot_fd), json.dumps({**other_fields, "parent": os.getppid(), "passed": passed})]
        try:
            os.execve(python, [python, "-P", "-m", "nemo_gym.launch.server_process", *arguments], env)
        except OSError as error:
            raise GymError(f"{python} cannot be run: {error.strerror}", where=request["instance"]) from error

    def _close_other_listeners(self, used: set[int]) -> None:
        """Close the inherited listening sockets except `used`."""
        for fd in {*self.listeners.values(), *self.cell_listeners} - used:
            os.close(fd)

    def _run_cell(self, request: Mapping[str, Any], config: DictConfig, ready_fd: int, link_fd: int | None) -> None:
        """Run a cell in this process: of the instance that the request names, or of all that are not in quarantine."""
        number, quarantined = request["cell"], request.get("quarantined", {})
        names = [request["instance"]] if "instance" in request else self.instances.keys() - quarantined.keys()
        hosted = [one for one in self.instances.values() if one.hosting == "cell" and one.name in names]
        adopt_limits(self.limits, {instance.name for instance in hosted}, holder=number)
        link_fd = self.cell_listeners[number] if link_fd is None else link_fd
        self._close_other_listeners({*(self.listeners[one.name] for one in hosted), link_fd})
        sockets = CellSockets(
            number=number,
            listeners={instance.name: socket.socket(fileno=self.listeners[instance.name]) for instance in hosted},
            link_listener=socket.socket(fileno=link_fd),
            link_addresses=self.link_addresses,
            token=os.environ[RUN_TOKEN_ENV_VAR],
            is_shared=len(self.cell_listeners) > 1,
        )
        elsewhere = [(self.instances[name], cell) for name, cell in quarantined.items() if name not in names]
        run_cell(config, hosted, sockets, ready_fd, elsewhere)

    def _run_alone(self, instance: Instance, worker: int, ready_fd: int) -> None:
        """Run the entrypoint of an instance as a script, with its folder as working directory and on `sys.path`."""
        adopt_limits(self.limits, {instance.name}, holder=worker)
        listener = self.listeners[instance.name]
        self._close_other_listeners({listener})
        os.environ[CONFIG_PATH_ENV_VAR] = instance.name
        os.environ[LISTEN_FD_ENV_VAR] = str(listener)
        os.environ[READY_FD_ENV_VAR] = str(ready_fd)
        os.chdir(instance.folder)
        sys.path.insert(0, str(instance.folder))
        sys.argv = [instance.entrypoint]
        try:
            runpy.run_path(str(instance.folder / instance.entrypoint), run_name="__main__")
        except GymError:
            raise
        except Exception as error:  # print the frames of the script without those of runpy and this module
            trace = _trace_from(instance.folder, error.__traceback__)
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            raise SystemExit(1) from None


def _trace_from(folder: Path, trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from its first frame in `folder` on; None without such a frame, as for a syntax error."""
    while trace is not None and not Path(trace.tb_frame.f_code.co_filename).is_relative_to(folder):
        trace = trace.tb_next
    return trace


def main(boot_fd: int, argument: str) -> None:
    """Run the instance of a request in this interpreter; exit with the parent process."""
    request = json.loads(argument)
    exit_with_parent()
    if os.getppid() != request["parent"]:  # the parent exited before PR_SET_PDEATHSIG was set
        return
    with os.fdopen(boot_fd, "rb") as file:
        boot = ServerBoot.model_validate_json(file.read())
    boot.run(request, *request["passed"])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
