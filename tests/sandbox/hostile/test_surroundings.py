"""Programs that explore their surroundings: files of the host, other processes, other boxes, the network."""

import os
import socket
import threading

import pytest


def test_no_file_of_ours_can_be_read(hostile, tmp_path):
    """Homes, keys, the repository, the temporary files of tests: none of it is mounted."""
    secret = tmp_path / "secret"
    secret.write_text("the secret itself")
    paths = [
        str(secret),
        "/etc/shadow",
        "/etc/ssh",
        os.path.expanduser("~/.ssh"),
        os.getcwd(),
        __file__,
        "/var",
        "/home",
    ]
    code = f"""
import os
for path in {paths!r}:
    print(os.path.lexists(path))
"""

    result = hostile.run(code)

    assert result.stdout == "False\n" * len(paths)


def test_the_root_holds_only_the_parts_python_needs(hostile):
    """Every other folder of the host could hold secrets."""
    result = hostile.run("import os; print(*sorted(os.listdir('/')))")

    assert set(result.stdout.split()) <= {
        *("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "tmp", "usr", "work"),
        *("root", "opt", "home"),  # parents of the interpreter, empty but for it
    }


def test_our_environment_is_not_passed_on(hostile, monkeypatch):
    """Environment variables hold API keys."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    code = """
import os, glob
print(dict(os.environ))
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        print(open(path).read())
    except OSError:
        pass
"""

    result = hostile.run(code)

    assert "very-secret" not in result.stdout
    assert set(eval(result.stdout.splitlines()[0])) == {"PATH", "HOME", "LANG", "TMPDIR"}


def test_only_the_boxes_own_processes_are_visible(hostile):
    """Other processes could be inspected or signalled."""
    result = hostile.run("import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdecimal()))")

    assert len(eval(result.stdout)) == 2  # process 1 and the program


def test_process_1_shows_nothing_of_itself(hostile):
    """Its descriptors lead to the host and could be used to forge how a program ended."""
    code = """
import os
for what in ("environ", "maps", "mem", "root", "cwd", "exe", "fd", "fd/3", "ns/net", "map_files"):
    path = f"/proc/1/{what}"
    try:
        (os.listdir if what in ("fd", "root", "cwd", "map_files") else open)(path)
        print("ESCAPED", what)
    except OSError as error:
        print("refused")
"""

    result = hostile.run(code)

    assert result.stdout == "refused\n" * 10, result


def test_no_descriptor_but_the_three_is_open(hostile):
    """A forgotten one to a folder of the host was a way out of runc (CVE-2024-21626)."""
    code = """
import os
held = []
for n in range(3, 1024):
    try:
        held.append(os.fstat(n))
    except OSError:
        pass
print(held)
"""

    result = hostile.run(code)

    assert result.stdout == "[]\n"


def test_two_boxes_see_nothing_of_each_other(hostile):
    """Programs of different rollouts must not exchange answers."""
    write = (
        "open('/tmp/mark', 'w').write('x'); open('/work/mark', 'w').write('x'); open('/dev/shm/mark', 'w').write('x')"
    )
    look = "import os; print(os.listdir('/tmp'), os.listdir('/work'), os.listdir('/dev/shm'))"

    hostile.run(write)
    result = hostile.run(look)

    assert result.stdout == "[] [] []\n"


@pytest.mark.parametrize(
    "path", ["/usr/bin/evil", "/etc/passwd", "/evil", "/dev/null/evil", "/dev/evil", "/run/evil", "/proc/evil"]
)
def test_nothing_outside_of_its_folders_can_be_written(hostile, path):
    """A changed system file would affect later programs."""
    result = hostile.run(f"open({path!r}, 'w').write('x'); print('ESCAPED')")

    assert result.stdout == ""
    assert result.return_code == 1


def test_links_lead_nowhere_new(hostile):
    """Links are the classic way around path checks."""
    code = """
import os
def attempt(action, *arguments):
    try:
        action(*arguments)
        print("ESCAPED", arguments)
    except OSError:
        print("refused")
os.symlink("/etc/shadow", "soft")
attempt(open, "soft")
os.symlink("/usr/bin", "folder")
attempt(open, "folder/evil", "w")
attempt(os.chmod, "folder/env", 0o777)
attempt(os.chown, "folder/env", 1000, 1000)
attempt(os.link, "/usr/bin/env", "hard")
attempt(os.link, "/etc/passwd", "/tmp/hard")
attempt(os.rename, "/usr/bin/env", "mine")
attempt(open, "../../../../../../etc/shadow")
attempt(os.truncate, "/usr/bin/env", 0)
"""

    result = hostile.run(code)

    assert result.stdout == "refused\n" * 9, result


# --- the network ------------------------------------------------------------------------------------------------------


@pytest.fixture
def our_server():
    """A listener on loopback, as every server has."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reached = threading.Event()

        def accept():
            try:
                listening.accept()[0].close()
                reached.set()
            except OSError:
                pass

        thread = threading.Thread(target=accept)
        thread.start()
        yield listening.getsockname()[1], reached
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_our_own_servers_cannot_be_reached(hostile, our_server):
    """`/verify` of the very server that grades would be the first thing to call."""
    port, reached = our_server

    result = hostile.run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')")

    assert (result.error_type, result.stdout) == ("forbidden", "")
    assert not reached.is_set()


@pytest.mark.parametrize(
    ("name", "code"),
    {
        "the address of cloud secrets": "socket.create_connection(('169.254.169.254', 80), 2)",
        "the internet": "socket.create_connection(('1.1.1.1', 53), 2)",
        "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
        "ipv6": "socket.socket(socket.AF_INET6)",
        "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "the host's hypervisor": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "kernel cryptography": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
        "bluetooth": "socket.socket(31, socket.SOCK_RAW)",
    }.items(),
)
def test_there_is_no_network(hostile, name, code):
    """A program must not fetch answers or send secrets."""
    result = hostile.run(f"import socket\n{code}\nprint('ESCAPED')")

    assert (result.error_type, result.stdout) == ("forbidden", ""), result


def test_names_are_not_resolved(hostile):
    """A name lookup alone can carry data out."""
    result = hostile.run("import socket\nsocket.getaddrinfo('example.com', 80); print('ESCAPED')", timeout_s=10)

    assert result.stdout == ""


def test_sockets_of_the_host_cannot_be_reached(hostile, tmp_path):
    """Abstract names need no path: a container engine was escaped that way (CVE-2020-15257)."""
    name = f"\0nemo-gym-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as bound:
        abstract.bind(name)
        abstract.listen()
        bound.bind(str(tmp_path / "s"))
        bound.listen()
        code = f"""
import socket
for address in ({name!r}, {str(tmp_path / "s")!r}, "/var/run/docker.sock", "/run/containerd/containerd.sock"):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        print("ESCAPED", address)
    except OSError:
        print("refused")
"""

        result = hostile.run(code)

    assert result.stdout == "refused\n" * 4


def test_sockets_within_the_box_work(hostile):
    """Honest programs need them, for example multiprocessing."""
    result = hostile.run("import socket\na, b = socket.socketpair()\na.send(b'fine')\nprint(b.recv(9))")

    assert result.stdout == "b'fine'\n"


# --- what stays -------------------------------------------------------------------------------------------------------


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)
"""

TEN_SESSIONS = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        time.sleep(3600)
"""

DEAF_AND_MUTE = """
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(1)
    os.close(2)
    time.sleep(3600)
"""

ZOMBIES = """
import os
for _ in range(15):
    if os.fork() == 0:
        os._exit(0)
"""

LEAVERS = {
    "child": "import subprocess; subprocess.Popen(['sleep', '3600'])",
    "own session": "import subprocess; subprocess.Popen(['sleep', '3600'], start_new_session=True)",
    "double fork daemon": DAEMON,
    "ten sessions": TEN_SESSIONS,
    "deaf and mute": DEAF_AND_MUTE,
    "zombies": ZOMBIES,
}


@pytest.mark.parametrize("name", LEAVERS)
def test_background_processes_end_with_their_program(hostile, name):
    """A process that outlives its program would use the machine unnoticed."""
    result = hostile.run(LEAVERS[name])

    assert (result.error_type, result.return_code) == (None, 0), result
