"""Skills are loaded, hashed and copied safely."""

import os
import re

import pytest

from nemo_gym.skills import SkillsConfig, hash_skill_dir, load_skill_directory, parse_skill_md, stage_skills

HEADER = "---\nname: {name}\ndescription: Does {name}.\nmetadata:\n  version: 1.2\n---\n# How\n"


@pytest.fixture
def skills(tmp_path):
    root = tmp_path / "skills"
    for name in ("search", "edit"):
        (root / name).mkdir(parents=True)
        (root / name / "SKILL.md").write_text(HEADER.format(name=name))
    (root / "edit" / "run.sh").write_text("#!/bin/sh\n")
    (root / "edit" / "run.sh").chmod(0o755)
    return root


def test_the_reference_names_path_hash_and_skills(skills):
    """It must be possible to find out later which instructions a rollout had."""
    reference = load_skill_directory(SkillsConfig(path=str(skills)).path)

    assert reference.path == str(skills.resolve())
    assert re.fullmatch("[0-9a-f]{12}", reference.hash)
    assert [skill.model_dump() for skill in reference.skills] == [
        {"name": "edit", "description": "Does edit.", "version": "1.2"},
        {"name": "search", "description": "Does search.", "version": "1.2"},
    ]


def test_a_relative_path_becomes_absolute(skills, monkeypatch):
    """The agent that copies the skills runs in another folder."""
    monkeypatch.chdir(skills.parent)

    assert load_skill_directory("skills").path == str(skills.resolve())


def test_the_hash_changes_only_with_content_and_names(skills):
    """Equal hashes must mean equal skills, on any machine."""
    before = hash_skill_dir(skills)
    script = skills / "edit" / "run.sh"

    os.utime(script, (1, 1))
    script.chmod(0o644)
    (skills / "edit" / "__pycache__").mkdir()
    (skills / "edit" / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert hash_skill_dir(skills) == before

    script.rename(script.with_name("go.sh"))
    renamed = hash_skill_dir(skills)
    (skills / "edit" / "go.sh").write_text("#!/bin/sh\necho\n")
    assert len({before, renamed, hash_skill_dir(skills)}) == 3


def test_the_hash_separates_names_from_content(tmp_path):
    """A hash over the plain concatenation would be equal for these two."""
    for name, file, content in (("one", "ab", "c"), ("two", "a", "bc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)

    assert hash_skill_dir(tmp_path / "one") != hash_skill_dir(tmp_path / "two")


def test_staged_skills_are_copies(skills, tmp_path):
    """An agent may change its copy, but never the original."""
    dest = tmp_path / "work" / ".skills"

    assert stage_skills(skills, dest) == dest

    assert hash_skill_dir(dest) == hash_skill_dir(skills)
    assert os.access(dest / "edit" / "run.sh", os.X_OK)
    (dest / "edit" / "run.sh").write_text("changed")
    assert (skills / "edit" / "run.sh").read_text() == "#!/bin/sh\n"


def test_staging_again_replaces_files_and_never_writes_through_links(skills, tmp_path):
    """An agent may have left any links in its workspace."""
    dest, precious = tmp_path / "work", tmp_path / "precious"
    precious.write_text("mine")
    (dest / "edit").mkdir(parents=True)
    (dest / "edit" / "run.sh").symlink_to(precious)
    (dest / "notes").write_text("kept")

    stage_skills(skills, dest)

    assert precious.read_text() == "mine"
    assert (dest / "edit" / "run.sh").read_text() == "#!/bin/sh\n"
    assert (dest / "notes").read_text() == "kept"


@pytest.mark.parametrize(
    "act", [hash_skill_dir, load_skill_directory, lambda path: stage_skills(path, path.parent / "d")]
)
@pytest.mark.parametrize("target", ["/etc/hostname", "/etc", "../../outside", "missing/../../../x"])
def test_a_link_that_leaves_the_folder_is_refused(skills, act, target):
    """Skills come from third parties, and a link could copy secrets of the machine into a rollout."""
    (skills.parent / "outside").write_text("secret")
    (skills / "edit" / "leak").symlink_to(target)

    with pytest.raises(ValueError, match="the link points outside the skills folder"):
        act(skills)
    assert not (skills.parent / "d").exists()


def test_a_link_to_a_file_inside_is_copied_as_a_file(skills, tmp_path):
    """Two skills may share a file."""
    (skills / "search" / "same.sh").symlink_to("../edit/run.sh")

    stage_skills(skills, tmp_path / "d")

    copy = tmp_path / "d" / "search" / "same.sh"
    assert (copy.read_text(), copy.is_symlink()) == ("#!/bin/sh\n", False)


@pytest.mark.parametrize("make", [lambda p: os.mkfifo(p), lambda p: p.symlink_to("."), lambda p: p.symlink_to("none")])
def test_other_kinds_of_files_are_refused(skills, make):
    """Reading a pipe would block, and a link to a folder may be circular."""
    make(skills / "edit" / "odd")

    with pytest.raises(ValueError, match="not a regular file"):
        hash_skill_dir(skills)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# no header\n", "must begin with a header"),
        ("---\nname: x\n", "must begin with a header"),
        ("---\ndescription: x\n---\n", "the header has no name"),
        ("---\nname: [\n---\n", "not valid YAML"),
        ("---\n- x\n---\n", "must have the form"),
        ("---\nname: 3\n---\n", "the header has no name"),
        ("---\nname: x\ndescription: [y]\n---\n", "description must be text"),
    ],
)
def test_a_malformed_skill_is_named(skills, text, reason):
    """The author needs the file and the problem."""
    path = skills / "edit" / "SKILL.md"
    path.write_text(text)

    with pytest.raises(ValueError, match=reason) as caught:
        load_skill_directory(skills)
    assert str(caught.value).startswith(str(path))


def test_a_header_may_leave_out_all_but_the_name(tmp_path):
    """Minimal skills are valid, also from editors that write a byte order mark."""
    path = tmp_path / "SKILL.md"
    path.write_bytes(b"\xef\xbb\xbf---\r\nname: x\r\n---\r\nbody\r\n")

    assert parse_skill_md(path).model_dump() == {"name": "x", "description": None, "version": None}


def test_folders_that_are_no_skills_are_errors(skills, tmp_path):
    """A skill that is silently left out makes a comparison wrong."""
    with pytest.raises(ValueError, match="skills folder not found"):
        load_skill_directory(tmp_path / "none")
    with pytest.raises(ValueError, match="this is one skill"):
        load_skill_directory(skills / "edit")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="the folder has no skills"):
        load_skill_directory(tmp_path / "empty")
    (skills / "draft").mkdir()
    with pytest.raises(ValueError, match=r"file not found: SKILL\.md"):
        load_skill_directory(skills)


def test_two_skills_may_not_share_a_name(skills):
    """A model could not choose between them by name."""
    (skills / "search" / "SKILL.md").write_text(HEADER.format(name="edit"))

    with pytest.raises(ValueError, match="two skills have the name 'edit'"):
        load_skill_directory(skills)


def test_skills_are_not_copied_into_themselves(skills):
    """The copy would contain itself or overwrite the original."""
    for dest in (skills / "copy", skills.parent):
        with pytest.raises(ValueError, match="one folder contains the other"):
            stage_skills(skills, dest)
