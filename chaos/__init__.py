"""Disturb running evaluations and check that no rollout is lost, duplicated or falsely scored.

`scenarios` holds the disturbances, `evaluation` the run that is disturbed, `endpoint` a faulty model endpoint,
`model_script` the scripted answers.
"""
