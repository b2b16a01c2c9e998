"""Use the API key that a provider's own tools read, if the configuration has none.

A key is only used for the hosts of its provider: sent to another endpoint, it would be known there.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from nemo_gym.config.trees import Tree

KEY, URL = "policy_api_key", "policy_base_url"
PROVIDERS = {
    "OPENAI_API_KEY": ("api.openai.com",),
    "ANTHROPIC_API_KEY": ("api.anthropic.com",),
    "GEMINI_API_KEY": ("generativelanguage.googleapis.com",),
    "GOOGLE_API_KEY": ("generativelanguage.googleapis.com",),
    "OPENROUTER_API_KEY": ("openrouter.ai",),
    "AZURE_OPENAI_API_KEY": (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
    "AZURE_API_KEY": (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
}
"""Environment variable -> the host of its provider, or with a leading dot the end of its hosts."""


def adopt_provider_key(tree: Tree, environ: Mapping[str, str]) -> list[str]:
    """Set `policy_api_key` from the environment if it is not set; return the notice that says so."""
    url = tree.get(URL)
    if tree.get(KEY) is not None or not isinstance(url, str):
        return []
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # not a URL
        return []
    for variable, hosts in PROVIDERS.items():
        if environ.get(variable) and any(host == one or (one[0] == "." and host.endswith(one)) for one in hosts):
            tree[KEY] = environ[variable]
            return [f"'{KEY}' is not set; the key in {variable} is used for {host}"]
    return []


def advise_on_provider_keys(environ: Mapping[str, str]) -> str:
    """Return for which addresses the keys of the environment are used, as the end of a sentence; empty without keys."""
    advice = ""
    for variable in filter(environ.get, PROVIDERS):
        hosts = " or ".join(f"*{host}" if host.startswith(".") else host for host in PROVIDERS[variable])
        advice += f"; the key in {variable} is used if {URL} is at {hosts}"
    return advice
