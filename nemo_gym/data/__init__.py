"""Datasets: check, measure, collate, render, publish, download and export rows.

- `sources`: the datasets of agents, their files, and downloading missing ones
- `collate`: write the rows of all agents into one file per type (`gym dataset collate`), with `chunks`
- `row_metrics`, `running_statistics`, `plot`: measure rows, compare and plot the metrics
- `prompt`: fill prompt templates from rows (`gym dataset render`)
- `skills`: folders of instructions for agents
- `hub`, `gitlab`, `file_transfer`: datasets in registries
- `export`, `export_selection`, `export_messages`, `export_files`: rollouts as datasets for trainers
- `atif_export`, `atif_import`: rollouts as ATIF trajectories, and trajectories as rollouts to verify
- `generator_command`: the command line of a folder's `generate.py`
"""
