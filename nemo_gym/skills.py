"""Skills: the public names of `nemo_gym.data.skills`."""

from nemo_gym.data.skills import SkillsConfig as SkillsConfig
from nemo_gym.data.skills import SkillsError as SkillsError
from nemo_gym.data.skills import hash_skill_dir as hash_skill_dir
from nemo_gym.data.skills import load_skill_directory as load_skill_directory
from nemo_gym.data.skills import parse_skill_md as parse_skill_md
from nemo_gym.data.skills import stage_skills as stage_skills
