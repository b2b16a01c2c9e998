"""Environments of other packages as environments of ours (docs/adapters.md).

- `episodes`: `PeerEpisode` and `PeerTurn`, which an adapter implements; they run in the process of a session
- `server`: `PeerServer`, the resources server of an adapter
- `id_writer`: the command that writes the list of ids of a source
- `model_calls`: `CallingEpisode`, for packages whose own loop calls the model
- `opponents`: the moves of the other players of a game
- `row_writer`: the process in which a package makes its rows
- `rows`: the rows of an environment, generated or read from its package
"""
