"""Environments, one folder each; `import nemo_gym` adds the folders of the other trees on `sys.path`."""

import nemo_gym as nemo_gym
