"""Server instances as plain data."""

from omegaconf import OmegaConf

from nemo_gym.rollouts.scoring_rules import server_blocks


def test_every_instance_is_found_with_its_type_and_what_it_refers_to():
    """Rules and attribution depend on it."""
    config = OmegaConf.create(
        {
            "name": "r",
            "a": {"responses_api_agents": {"simple_agent": {"resources_server": {"name": "${name}"}, "max_steps": 3}}},
            "verbose": True,
            "notes": {"resources_servers": None},
        }
    )

    blocks = server_blocks(config)

    assert list(blocks) == ["a"]
    block = blocks["a"]
    assert (block.server_type, block.implementation) == ("responses_api_agents", "simple_agent")
    assert block.reference("resources_server") == "r"
    assert block.reference("max_steps") is None


def test_a_value_that_cannot_be_resolved_hides_nobody():
    """Looking something up must not fail where running does not."""
    config = OmegaConf.create({"a": {"responses_api_agents": {"x": {"key": "${nowhere}", "n": 1}}}})

    assert server_blocks(config)["a"].fields["n"] == 1
