# Targets for `make`: each runs the command of dev.py with the same name (python3 dev.py --help).
COMMANDS := quickstart test quick fmt lint lint-js types test-newest test-installed train train-trl trainers dialects clients harnesses vllm ray sources docs perf proofs million chaos chaos-short lock audit sbom release check

.PHONY: help $(COMMANDS)

help:
	@python3 dev.py --help

$(COMMANDS):
	@python3 dev.py $@
