# What a release needs: wheels, and the tests of what they hold. The Makefile includes this file after the variables.

.PHONY: wheels docs types

# Another folder for the compiler and the auditors: make wheels WHEELS=/tmp/wheels. Some of the wheels: TARGETS="x86_64".
WHEELS  := .venv-wheels
TARGETS :=
$(WHEELS)/.installed: requirements/wheels.txt
	@echo "Installing the compiler and the auditors of wheels in $(WHEELS)"
	@test -x $(WHEELS)/bin/python || $(PYTHON) -m venv $(WHEELS)
	@$(WHEELS)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

wheels: $(WHEELS)/.installed
	@echo "Building and auditing the wheels; this takes some minutes"
	@$(WHEELS)/bin/python packaging/wheels.py $(TARGETS)

# Warnings are errors, missing targets of links among them. The pages of the API and of the formats come from docstrings.
docs: $(MODULE) $(VENV)/.extra-pages
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "Wrote build/docs/index.html"

# How much of the public interface pyright finds typed; below 98 % is an error. It finds numpy by the first python in PATH.
types: $(VENV)/.extra-lint
	@echo "Checking how much of the public interface is typed, with pyright"
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/pyright --verifytypes weightmap --ignoreexternal > $(VENV)/types.log; \
	    grep "completeness" $(VENV)/types.log && \
	    awk '/completeness/ {exit $$NF + 0 < 98}' $(VENV)/types.log || \
	    { grep "error" $(VENV)/types.log || cat $(VENV)/types.log; exit 1; }
