"""Providers that run sandboxes, by name.

- `base`: the interface; `registry`: names to classes
- `archive`, `container_engine`: code shared by the shipped providers
- `docker`, `apptainer`, `local`: the shipped providers
"""
