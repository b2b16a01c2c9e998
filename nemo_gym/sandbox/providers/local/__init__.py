"""Sandboxes on this machine without image, daemon or network.

A box is one isolated process tree. Its init process (process id 1 inside) runs one action at a time in a child process:
a command, a program, a session, or packing and unpacking files.

- `provider`: `LocalProvider`, and `UnsandboxedProvider` for machines without isolation
- `isolation_probe`: `probe` tests which isolation this machine supports
- `bubblewrap`, `seccomp`, `cgroups`, `limits`: the layers of isolation
- `box`, `pool`: start boxes, and create them in advance
- `execution`, `end_reason`: run programs and classify how they ended
- `inside`: the code that runs in a box
"""

from nemo_gym.sandbox.providers.local.isolation_probe import Isolation, probe
from nemo_gym.sandbox.providers.local.provider import LocalProvider

__all__ = ["Isolation", "LocalProvider", "probe"]
