"""What runs in a server process: a cell of many instances, or one server folder that believes it is alone.

Forked children of the zygote call `Hosts.run`; an interpreter of its own runs
`python -m nemo_gym.launch.hosting BOOT_FD READY_FD REQUEST`.
"""

import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym import global_config, server_utils  # noqa: F401 - server_utils: what every server needs, loaded before the fork
from nemo_gym.errors import GymError
from nemo_gym.keys import CONFIG_PATH_ENV_VAR
from nemo_gym.launch.cell import Place, run_cell
from nemo_gym.launch.instances import Instance
from nemo_gym.launch.ports import unix_name
from nemo_gym.net import places
from nemo_gym.net.places import SharedPlaces
from nemo_gym.serve.head import RUN_TOKEN_ENV_VAR
from nemo_gym.serve.run import LISTEN_FD_ENV_VAR, READY_FD_ENV_VAR, end_with_parent, tell_ready


def boot_message(
    config: DictConfig,
    found: list[Instance],
    listeners: Mapping[str, int],
    cell_listeners: list[int],
    shares: Mapping[str, list[tuple[int, int]]],
) -> dict[str, Any]:
    """Everything a server process must know, as JSON."""
    return {
        "config": OmegaConf.to_container(config, resolve=True),
        "instances": [asdict(instance) | {"folder": str(instance.folder)} for instance in found],
        "listeners": dict(listeners),
        "cell_listeners": cell_listeners,
        "shares": dict(shares),
    }


@dataclass(frozen=True)
class Hosts:
    """The instances of a run and the sockets they listen on, as a server process inherits them."""

    config: DictConfig
    instances: dict[str, Instance]
    listeners: dict[str, int]
    cell_listeners: list[int]
    shares: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def from_boot(cls, boot: Mapping[str, Any], moved: Mapping[int, int] | None = None) -> "Hosts":
        """As the message says; `moved` has the numbers of descriptors that came over a socket."""

        def here(number: int) -> int:
            return number if moved is None else moved[number]

        found = [Instance(**{**block, "folder": Path(block["folder"])}) for block in boot["instances"]]
        return cls(
            config=OmegaConf.create(boot["config"]),
            instances={instance.name: instance for instance in found},
            listeners={name: here(number) for name, number in boot["listeners"].items()},
            cell_listeners=[here(number) for number in boot["cell_listeners"]],
            shares={
                name: [(here(counter), here(ledger)) for counter, ledger in lots]
                for name, lots in boot.get("shares", {}).items()
            },
        )

    def run(self, request: Mapping[str, Any], ready: int) -> None:
        """Become what the request says, until told to stop. A failure to start is reported in words, then raised."""
        global_config._GLOBAL_CONFIG_DICT = self.config
        holder = request["cell"] if request["kind"] == "cell" else request.get("worker", 0)
        for name, lots in self.shares.items():
            if self._is_hosted(name, request):
                places.adopt(name, [SharedPlaces(counter, ledger, holder) for counter, ledger in lots])
        try:
            if request["kind"] == "cell":
                self._run_cell(request["cell"], ready)
            else:
                self._run_alone(self.instances[request["instance"]], ready)
        except GymError as problem:
            tell_ready(ready, failed=str(problem))
            raise SystemExit(problem.exit_status) from None

    def _is_hosted(self, name: str, request: Mapping[str, Any]) -> bool:
        in_cell = self.instances[name].hosting == "cell"
        return in_cell if request["kind"] == "cell" else request["instance"] == name

    def _keep_only(self, kept: set[int]) -> None:
        """Close every listening socket that belongs to somebody else."""
        for fd in {*self.listeners.values(), *self.cell_listeners} - kept:
            os.close(fd)

    def _run_cell(self, cell: int, ready: int) -> None:
        hosted = [instance for instance in self.instances.values() if instance.hosting == "cell"]
        own = {self.listeners[instance.name] for instance in hosted} | {self.cell_listeners[cell]}
        addresses = [_unix_address(fd) for fd in self.cell_listeners]
        self._keep_only(own)
        place = Place(
            number=cell,
            listeners={instance.name: _adopted(self.listeners[instance.name]) for instance in hosted},
            door=_adopted(self.cell_listeners[cell]),
            addresses=addresses,
            token=os.environ[RUN_TOKEN_ENV_VAR],
        )
        run_cell(self.config, hosted, place, ready)

    def _run_alone(self, instance: Instance, ready: int) -> None:
        """Run the folder's entrypoint as a script, with its folder as the world it sees."""
        listener = self.listeners[instance.name]
        self._keep_only({listener})
        os.environ[CONFIG_PATH_ENV_VAR] = instance.name
        os.environ[LISTEN_FD_ENV_VAR] = str(listener)
        os.environ[READY_FD_ENV_VAR] = str(ready)
        os.chdir(instance.folder)
        sys.path.insert(0, str(instance.folder))
        sys.argv = [instance.entrypoint]
        try:
            runpy.run_path(str(instance.folder / instance.entrypoint), run_name="__main__")
        except GymError:
            raise
        except Exception as error:  # somebody else's program: its writer wants to see its frames, not ours
            shown = error.with_traceback(_frames_below(error.__traceback__, instance.folder))
            sys.excepthook(type(shown), shown, shown.__traceback__)
            raise SystemExit(1) from None


def _frames_below(trace: TracebackType | None, folder: Path) -> TracebackType | None:
    """The part of a traceback that begins in `folder`; nothing when no frame is there, as with a syntax error."""
    while trace is not None and not Path(trace.tb_frame.f_code.co_filename).is_relative_to(folder):
        trace = trace.tb_next
    return trace


def _adopted(fd: int) -> socket.socket:
    return socket.socket(fileno=fd)


def _unix_address(fd: int) -> str:
    """The name of a Unix listening socket, without taking the descriptor over."""
    with socket.socket(fileno=os.dup(fd)) as borrowed:
        return unix_name(borrowed)


def main(boot_fd: int, ready_fd: int, request: str) -> None:
    """Run one instance in this interpreter, for as long as the process that asked for it lives."""
    asked = json.loads(request)
    end_with_parent(signal.SIGKILL)
    if os.getppid() != asked["parent"]:  # it died before we could ask the kernel to tell us
        return
    with os.fdopen(boot_fd, "rb") as boot:
        hosts = Hosts.from_boot(json.load(boot))
    hosts.run(asked, ready_fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
