"""Developer tools that generate and check files of this repository.

`reference` and `endpoints` write the reference pages, `environments` the table of environments, `examples` (with
`example_judges`) the example data of server folders, `live_view` the README's picture; `language` checks names and
prose; `clients` runs real agent programs against the model servers.
"""
