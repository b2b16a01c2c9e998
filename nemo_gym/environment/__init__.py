"""What an environment says of itself (`manifest.yaml`) and what its verifier promises (`VERIFIER_FIXTURE`)."""
