"""Configuration: resolve YAML files, env.yaml and command-line overrides into one checked tree.

The package uses no clock, socket or process; facts about the machine are passed in (`HostFacts`). Modules in reading
order:

    keys, key_checks                    the global configuration keys: type, default, meaning, flag; their checks
    resolve         the pipeline: `resolve(ResolveRequest, HostFacts) -> ResolvedConfig`
    load, yaml_text, path_aliases       find and read files
    merge, directives, overrides        combine trees; `_inherit_from`, `_copy`; `+a.b=c`
    interpolations, omega               check `${…}`; convert OmegaConf trees (`as_dict`)
    instances, check, defaults          server instances: find, check, fill in addresses
    problems, positions                 errors with file, line and column
    secrets         secret masking
    schema_cli, schema_datasets, schema_servers     pydantic classes of commands, datasets and server blocks
"""
