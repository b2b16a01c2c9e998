"""Fakes of `docker` and `apptainer`: small programs that record their calls and act on a folder."""

import json
import stat
import sys
from pathlib import Path

_COMMON = """#!{python} -SE
import json, os, shutil, subprocess, sys, tarfile, time
from pathlib import Path
STATE = Path({state!r})
argv = sys.argv[1:]
with (STATE / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps({{"argv": argv, "env": dict(os.environ)}}) + "\\n")
def fail(text, status=1):
    print(text, file=sys.stderr)
    sys.exit(status)
def root_of(name):
    root = STATE / "boxes" / name
    if not root.is_dir():
        fail("Error: No such container: " + name)
    return root
def run(root, command, cwd, env):
    # Like runc, the command leads a session of its own and does not die with the client.
    # Absolute paths in these tests are relative to the sandbox's root: there is no mount namespace here.
    child = subprocess.Popen(command, cwd=root / (cwd or "/").lstrip("/"), env={{"PATH": os.environ["PATH"], **env}},
                             start_new_session={own_session})
    (STATE / "pids").open("a").write(str(child.pid) + "\\n")
    sys.exit(child.wait())
"""

_DOCKER = """
if (STATE / "down").exists():
    fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", 125)
verb, *rest = argv
if verb == "run":
    if "missing:latest" in rest:
        fail("Unable to find image 'missing:latest' locally\\ndocker: no such image.", 125)
    (STATE / "boxes" / rest[rest.index("--name") + 1]).mkdir(parents=True)
    if "slow:latest" in rest:
        time.sleep(60)
    print("0123456789ab")
elif verb == "exec":
    cwd, env = None, {}
    while rest[0].startswith("--"):
        option, value, *rest = rest
        if option == "--workdir":
            cwd = value
        elif option == "--env":
            name, _, literal = value.partition("=")
            env[name] = literal or os.environ[name]
    name, *command = rest
    run(root_of(name), command, cwd, env)
elif verb == "cp" and rest[0] == "-":
    name, _, _ = rest[1].partition(":")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extractall(root_of(name), filter="data")
elif verb == "cp":
    name, _, path = rest[1].partition(":")
    evil = STATE / "evil.tar"
    if evil.exists():
        sys.stdout.buffer.write(evil.read_bytes())
        sys.exit(0)
    source = root_of(name) / path.lstrip("/")
    if not source.exists():
        fail("Error response from daemon: Could not find the file " + path)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(source, arcname=source.name)
elif verb == "inspect":
    root_of(rest[-1])
    print("running")
elif verb == "port":
    root_of(rest[0])
    print("127.0.0.1:49153" if rest[1] == "8000/tcp" else "")
elif verb == "rm":
    shutil.rmtree(STATE / "boxes" / rest[-1], ignore_errors=True)
else:
    fail("unknown command " + verb)
"""

_APPTAINER = """
if argv[:2] == ["instance", "start"]:
    image, name = argv[-2:]
    if image == "docker://missing":
        fail("FATAL:   Unable to pull docker://missing", 255)
    (STATE / "boxes" / name).mkdir(parents=True)
elif argv[:2] == ["instance", "list"]:
    here = (STATE / "boxes" / argv[-1]).is_dir()
    print(json.dumps({"instances": [{"instance": argv[-1], "pid": 1}] if here else []}))
elif argv[:2] == ["instance", "stop"]:
    shutil.rmtree(STATE / "boxes" / argv[-1], ignore_errors=True)
elif argv[0] == "exec":
    rest, cwd = argv[1:], None
    while rest[0].startswith("--"):
        option, *rest = rest
        if option == "--pwd":
            cwd, *rest = rest
    name = rest[0].removeprefix("instance://")
    if not (STATE / "boxes" / name).is_dir():
        fail("FATAL:   no instance found with name " + name, 255)
    root = root_of(name)
    command = [str(root) + part if part.startswith("/") else part for part in rest[1:]]
    env = {k.removeprefix("APPTAINERENV_"): v for k, v in os.environ.items() if k.startswith("APPTAINERENV_")}
    run(root, command, cwd, env)
"""


class Engine:
    """A fake engine and the calls it received."""

    def __init__(self, folder: Path, name: str, body: str, *, own_session: bool) -> None:
        self.state = folder / f"{name}-state"
        (self.state / "boxes").mkdir(parents=True)
        self.binary = folder / name
        head = _COMMON.format(python=sys.executable, state=str(self.state), own_session=own_session)
        self.binary.write_text(head + body, encoding="utf-8")
        self.binary.chmod(self.binary.stat().st_mode | stat.S_IXUSR)

    @property
    def calls(self) -> list[list[str]]:
        return [call["argv"] for call in self._recorded_calls()]

    @property
    def environments(self) -> list[dict[str, str]]:
        return [call["env"] for call in self._recorded_calls()]

    @property
    def boxes(self) -> list[str]:
        return sorted(path.name for path in (self.state / "boxes").iterdir())

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in (self.state / "pids").read_text().split()]

    def _recorded_calls(self) -> list[dict]:
        return [json.loads(line) for line in (self.state / "calls.jsonl").read_text().splitlines()]


def fake_docker(folder: Path) -> Engine:
    return Engine(folder, "docker", _DOCKER, own_session=True)


def fake_apptainer(folder: Path) -> Engine:
    return Engine(folder, "apptainer", _APPTAINER, own_session=False)
