"""Sandboxes as boxes on this machine: no image, no daemon, no network.

- `provider`: `LocalProvider`, and `UnsandboxedProvider` for machines without isolation
- `isolation`: `probe` finds out what this machine supports
- `bubblewrap`, `seccomp`, `cgroups`, `limits`: the layers of isolation
- `launch`, `pool`: start boxes, and make them in advance
- `execution`, `session`, `ending`: run programs and snippets and classify their ends
- `inside`: the code that runs in a box
"""

from nemo_gym.sandbox.providers.local.isolation_probe import Isolation, probe
from nemo_gym.sandbox.providers.local.provider import LocalProvider

__all__ = ["Isolation", "LocalProvider", "probe"]
