"""Skip tests of servers that run model-written code on machines without isolation. Needs the extra `dev`."""

import pytest

from nemo_gym.sandbox.python import require_isolation
from nemo_gym.sandbox.spec import SandboxUnsupportedError


def isolation_problem() -> str | None:
    """Return the reason why this machine cannot isolate programs, or None."""
    try:
        require_isolation({})
    except SandboxUnsupportedError as error:
        return str(error)
    return None


needs_isolation = pytest.mark.skipif(isolation_problem() is not None, reason=str(isolation_problem()))
