"""Skills under their public names."""

from nemo_gym.data.skills import (
    SkillsConfig,
    SkillsError,
    hash_skill_dir,
    load_skill_directory,
    parse_skill_md,
    stage_skills,
)

__all__ = [
    "SkillsConfig",
    "SkillsError",
    "hash_skill_dir",
    "load_skill_directory",
    "parse_skill_md",
    "stage_skills",
]
