"""Overrides that are read without Hydra mean what Hydra says they mean."""

import json
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.config.overrides import SIMPLE_OVERRIDE, parse_overrides
from nemo_gym.config.overrides import hydra_parser as hydra_reader

TEXT = st.text("abzAZ019_./:@+-", max_size=12)
KEYS = st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), min_size=1, max_size=3).map(".".join)
HYDRA = hydra_reader()
VALUES = st.one_of(st.booleans(), TEXT, st.lists(TEXT, min_size=1, max_size=3))


@settings(max_examples=100, deadline=None)
@given(sign=st.sampled_from(["+", "++"]), key=KEYS, value=VALUES)
def test_a_plain_override_is_read_as_hydra_reads_it(sign: str, key: str, value: object) -> None:
    """Two readers that disagree would be two configurations from one command line."""
    token = f"{sign}{key}={json.dumps(value)}"

    assert SIMPLE_OVERRIDE.fullmatch(token)
    if not key.startswith("hydra"):  # settings of Hydra's own runner are left out
        assert parse_overrides([token]) == [HYDRA(token)]


def test_flags_alone_do_not_load_hydra() -> None:
    """A fifth of the time that `gym env validate` takes would go there."""
    code = (
        "import sys; from nemo_gym.cli.main import main; "
        "status = main(['env', 'validate', '--environment', 'arithmetic', '-v']); "
        "raise SystemExit(status or ('hydra' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
