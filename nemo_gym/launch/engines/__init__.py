"""Engines: where the servers of a run are placed. The rest of the package sees one interface.

- `base`: the interface, and the choice of an engine by the configuration
- `local`: all servers on this machine
- `component_archive`: component folders packed for other machines, and digests of code
- `ray`: one run of servers for each node of a Ray cluster; the only modules that import Ray
"""
