"""Accept configurations in the forms of earlier documentation, each with a warning that names today's form."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from nemo_gym.config.instances import ServerInstance, instances_of, server_instances
from nemo_gym.config.problems import nearest_names
from nemo_gym.config.search_roots import component_folder
from nemo_gym.config.trees import Tree
from nemo_gym.keys import AGENTS, MODELS, RESOURCES

EARLIER_POLICY, POLICY = "openai_model", "policy_model"
"""The instance id that the shared model server had, and its id today."""
EARLIER_MODEL_KEY, MODEL_KEY = "openai_model_name", "openai_model"


def adopt_earlier_forms(tree: Tree, roots: Sequence[Path]) -> list[str]:
    """Replace earlier forms in a merged configuration; return a warning for each."""
    return [*_rename_model_keys(tree), *_redirect_policy_references(tree), *_fill_domains(tree, roots)]


def _block(tree: Tree, instance: ServerInstance) -> dict[str, Any]:
    name, server_type, implementation = instance.path
    block: dict[str, Any] = tree[name][server_type][implementation]
    return block


def _rename_model_keys(tree: Tree) -> Iterator[str]:
    """Rename `openai_model_name` to `openai_model`."""
    for model in instances_of(tree, MODELS):
        if EARLIER_MODEL_KEY in model.fields and MODEL_KEY not in model.fields:
            block = _block(tree, model)
            block[MODEL_KEY] = block.pop(EARLIER_MODEL_KEY)
            yield f"{model.name}: '{EARLIER_MODEL_KEY}' is called '{MODEL_KEY}'; the earlier name still works"


def _redirect_policy_references(tree: Tree) -> Iterator[str]:
    """If no model is called `openai_model`, change references to it to `policy_model`; yield a warning for each."""
    models = {model.name for model in instances_of(tree, MODELS)}
    if POLICY not in models or EARLIER_POLICY in tree:
        return
    for agent in instances_of(tree, AGENTS):
        if agent.reference("model_server") == EARLIER_POLICY:
            _block(tree, agent)["model_server"]["name"] = POLICY
            yield f"{agent.name}: model server '{EARLIER_POLICY}' is called '{POLICY}'; the earlier name still works"


def _fill_domains(tree: Tree, roots: Sequence[Path]) -> Iterator[str]:
    """Give a resources server without a domain the one that the configuration of its folder has."""
    for server in instances_of(tree, RESOURCES):
        names = [str(name) for name in server.fields]
        if "entrypoint" not in names or "domain" in names or nearest_names("domain", names):
            continue  # it has a domain, or one that is misspelt, which is an error
        folder = component_folder(RESOURCES, server.implementation, roots)
        domain = _folder_domain(folder / "configs" / f"{server.implementation}.yaml") if folder else None
        if domain:
            _block(tree, server)["domain"] = domain
            yield f"{server.name}: 'domain' is not set; '{domain}' is that of resources_servers/{server.implementation}"


def _folder_domain(config: Path) -> str | None:
    try:
        tree = yaml.safe_load(config.read_bytes())
    except (OSError, yaml.YAMLError):
        return None
    servers = server_instances(tree).values() if isinstance(tree, dict) else ()
    return next((str(server.fields["domain"]) for server in servers if server.fields.get("domain")), None)
