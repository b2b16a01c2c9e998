"""Access to a sandbox that another server started: the public names."""

from nemo_gym.wire.session_access import DirectSandboxConnection as DirectSandboxConnection
from nemo_gym.wire.session_access import SandboxAccess as SandboxAccess
