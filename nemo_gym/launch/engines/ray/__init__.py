"""The engine for a Ray cluster: one run of servers on each node. No other package imports Ray for placing servers.

- `engine`, `cluster_options`: from the configuration to a `ClusterRun`
- `connection`: start or join the cluster, and explain what is wrong with it
- `reservation`: a place on every node, reserved in a placement group
- `cluster_run`: the driver's side: places node runs, starts lost ones again, offers them as a pool
- `node_handle`: starts and ends the node run in one place; the driver's link to its actor
- `node_run`: the actor: one whole run of servers on a node, and its workload
"""
