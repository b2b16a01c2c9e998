# For fingers that type make: every target is a command of dev.py, which says what each does (python3 dev.py --help).
COMMANDS := quickstart test fmt lint types test-newest docs perf proofs million chaos chaos-short lock check

.PHONY: help $(COMMANDS)

help:
	@python3 dev.py --help

$(COMMANDS):
	@python3 dev.py $@
