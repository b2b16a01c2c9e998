"""Code that several commands share.

`options`: flags, overrides and checked options · `concurrency`: threads, interrupts, cancellation · `servers`: start
servers · `scoring`: select servers and print scores · `eval_request`, `collection`, `report`, `matrix`, `live_file`:
parts of `gym eval run` · `verifiers`: audit and test verifiers · `registries`: Hugging Face and GitLab.
"""
