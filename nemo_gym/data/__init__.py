"""Datasets: check, measure, collate, render, publish, download and export rows.

- `sources`: the datasets of agents, their files, and downloading missing ones
- `collate`: write the rows of all agents into one file per type (`gym dataset collate`), with `chunks` and `workers`
- `row_metrics`, `running_statistics`, `metrics_file`, `plot`: measuring rows, storing and plotting it
- `prompt`: fill prompt templates from rows (`gym dataset render`)
- `skills`: folders of instructions for agents
- `hub`, `hub_client`, `gitlab`, `gitlab_client`, `migration`, `transfer`: datasets in registries
- `export` and `export_*`: rollouts as datasets for trainers
- `generator_command`: the command line of a folder's `generate.py`
"""
