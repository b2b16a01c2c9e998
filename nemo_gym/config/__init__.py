"""Configuration: from YAML files, env.yaml and command-line overrides to one checked tree.

No clock, no socket, no process: facts about the machine are arguments (`HostFacts`). The modules, in reading order:

    keys, key_checks                    the global configuration keys: type, default, meaning, flag; their checks
    resolve         the pipeline: `resolve(ResolveRequest, HostFacts) -> ResolvedConfig`
    load, yaml_text, path_aliases       find and read files
    merge, directives, overrides        combine trees; `_inherit_from`, `_copy`; `+a.b=c`
    interpolations, omega               `${…}`; conversion of OmegaConf trees (`as_dict`)
    instances, check, defaults          server instances: find, check, fill in addresses
    problems, positions                 errors with file, line and column
    secrets         secret masking
    schema_*        pydantic classes of server blocks, datasets and commands
"""
