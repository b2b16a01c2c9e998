"""Configuration: resolve YAML files, env.yaml and command-line overrides into one checked tree.

The package uses no clock, socket or process; facts about the machine are passed in (`HostFacts`). Modules in reading
order:

    keys            the global configuration keys: type, default, meaning, flag
    resolve         the pipeline: `resolve(ResolveRequest, HostFacts) -> ResolvedConfig`
    search_roots, load, yaml_text       find and read files
    environment_sources                 environments of other packages by name
    component_imports                   import component folders of several trees
    trees           merge, copy, search and walk trees of plain data
    earlier_forms   accept the forms of earlier documentation
    provider_keys   use OPENAI_API_KEY and similar variables if the configuration has no key
    inheritance, overrides              expand `_inherit_from`, `_copy`, `_delete_key`; apply `+a.b=c`
    interpolations  check `${…}`
    omegaconf_adapter                   convert OmegaConf trees to plain data (`as_dict`)
    instances, checks, defaults         server instances: find them, check them, fill in addresses
    dataset_agents  the agent that runs a dataset
    problems, error_locations           errors with file, line and column
    secret_names, secret_text, secrets  secret masking: by name, in texts, in trees
    schema_cli, schema_datasets, schema_servers     pydantic classes of commands, datasets and server blocks
"""
