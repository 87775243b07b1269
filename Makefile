# Two commands: make run, make test. Needs Python 3.11 or newer, nothing else.
# PYTHON=python3.12 make …   chooses the interpreter; VENV=… the environment's folder.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: run test lint conformance bench docs constraints clean help

help:
	@echo "make run          start the service (database included): S3 on 9000, admin on 9001"
	@echo "make test         the whole suite     make test T=tests/pure   a part of it"
	@echo "make lint         ruff, mypy, import-linter"
	@echo "make conformance  the ceph s3-tests against a server of ours"
	@echo "make bench        measure this gateway and its installed peers: make bench ARGS=\"--quick --peers\""
	@echo "make docs         write docs/settings.md, metrics.md, cli.md and errors.md from the code"
	@echo "make constraints  resolve the pinned dependencies anew"

# The stamps hold the hash of what was installed: nothing is done when nothing changed.
run: $(VENV)/.runtime
	@exec $(BIN)/sluice serve $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $${SLUICETEST_JOBS:-auto} --dist loadgroup $(T) $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

conformance: $(VENV)/.test
	$(BIN)/python -m conformance $(ARGS)

# Measures; needs wrk and curl. bench/README.md says how to repeat a run.
bench: $(VENV)/.test
	@$(BIN)/python -m bench $(ARGS)

docs: $(VENV)/.test
	$(BIN)/python -m gateway.cli.reference docs

$(VENV)/.runtime: constraints-run.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-run.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: constraints.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.runtime

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is older. Try: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot make a virtual environment (Debian: apt-get install python3-venv)."; exit 1; }

# Needs uv. Names, versions and hashes only: where packages come from is the machine's business.
UV = uv pip compile pyproject.toml --generate-hashes --universal --python-version 3.11 --no-emit-index-url \
     --no-header --no-annotate --quiet
constraints:
	$(UV) --extra test -o constraints.txt
	$(UV) --extra build -c constraints.txt -o constraints-run.txt

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
