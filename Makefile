# Every target works on a fresh clone: it needs Python 3.11 or newer with its headers, make and a C compiler, and makes
# everything else itself, in .venv. `make` lists the targets. Another interpreter: make PYTHON=python3.13 test.

include variables.mk

# A part of the benchmarks: make bench BENCHMARKS="benchmarks/bench_open.py -k MiniLM"
BENCHMARKS := benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all fuzz fuzz-guided lint format clients-test torch-test experts-test quantised-test vllm-test distributed-test device-test device-bench browser-test gensim-test modelexpress-test bench bench-ggml ggml-test report quantisation-table wheel clean

help:
	@echo "make demo    convert all-MiniLM-L6-v2, open it by mapping, embed a few sentences"
	@echo "make test    the tests, and every benchmark once: four and a half minutes on two idle processors"
	@echo "make test-all  these, and the slow ones, which compile the C sources again or try very many files: what CI runs"
	@echo "make lint    ruff, mypy --strict, clang-format, make types, and the C sources with warnings as errors"
	@echo "make format  lay the sources out as make lint wants them"
	@echo "make bench   the benchmarks with all their rivals; writes benchmark.json"
	@echo "make bench-ggml  the blocks of ggml beside ggml's own C, which it downloads (77 MB) and compiles"
	@echo "make report  docs/benchmarks.md from benchmark.json; all times and plots into build/benchmarks/"
	@echo "make quantisation-table  the table of docs/quantisation.md, measured anew"
	@echo "make wheel   source distribution and wheel, into dist/"
	@echo "make wheels  wheels for Linux on x86-64 and aarch64, glibc and musl, audited, into dist/"
	@echo "make types   how much of the public interface is typed, by pyright"
	@echo "make docs    the pages, with the API, into build/docs/"
	@echo "make arm64-test     the arm64 kernels, cross-compiled and run under an emulator"
	@echo "make sanitize-test  the kernels under the address and undefined-behaviour sanitisers"
	@echo "make sanitize       all tests with the C module under these sanitisers"
	@echo "make tsan-test      the kernels that start threads, under the thread sanitiser"
	@echo "make fuzz-c         libFuzzer on the scanners of indexes, a minute each"
	@echo "make coverage       the branches of parsers and table: fails below all of them"
	@echo "make finalfusion-test  what is written is read by finalfusion-python, in an environment of its own"
	@echo "make ggml-test  values and errors of ggml's blocks beside those of ggml's own C (see bench-ggml)"
	@echo "make clients-test   transformers and others on weightmap.compat, all tests of torch and jax: an environment of 2 GB"
	@echo "make torch-test     checkpoints that PyTorch writes, beside its own loader: an environment of its own"
	@echo "make experts-test   mixtures of experts of transformers 5 and 4 whose experts come from a pool: an environment of its own"
	@echo "make quantised-test  quantised models of transformers and its libraries decoded beside them: an environment of 1 GB"
	@echo "make llama-test     models of Hugging Face as GGUF in llama.cpp, beside transformers: compiles it once, an environment of 2 GB"
	@echo "make modelexpress-test  versions of models written and read by ModelExpress beside ours: an environment of its own"
	@echo "make gensim-test    gensim's files and answers beside ours: an environment of its own"
	@echo "make browser-test   the pages of weightmap report in a headless Chromium, which the system has"
	@echo "make vllm-test  vLLM on the load format weightmap beside its own: an environment of 2.5 GB, for processors without a GPU"
	@echo "make distributed-test  torch.distributed, jax and MPI ranks on one model, in an environment of 1.5 GB"
	@echo "make device-test   loading to a GPU: all tests on one, and its kernels by an interpreter, in an environment of 6 GB"
	@echo "make device-bench  the same timed beside other loaders; it needs a GPU"
	@echo "make fuzz    10,000,000 mutants of every format, numbered: MUTANTS=100000 FIRST=0 FORMATS='amb embd'"
	@echo "make fuzz-guided  every reader under atheris, for SECONDS=60 each"
	@echo "make clean   remove everything that these made, .venv included"

demo: $(MODULE) $(MODEL) $(VENV)/.extra-demo
	@$(BIN)/weightmap demo

# One process for each processor, up to four; make test JOBS=0 runs everything in one process, and names the files.
JOBS := auto
# Python may cache what it compiles: the suite starts many processes.
TEST := unset PYTHONDONTWRITEBYTECODE; $(PYTEST) --benchmark-disable --numprocesses=$(JOBS) --maxprocesses=4 --dist=worksteal
test: $(MODULE) $(MODEL) $(VENV)/.extra-test $(VENV)/.extra-bench $(VENV)/.extra-demo
	@echo "Running the tests, and each benchmark once"
	@$(TEST) -m "not slow" tests benchmarks

# These, and then the slow ones: `make test test-all` runs no test twice.
test-all: test $(VENV)/.extra-pages
	@echo "Running the slow tests"
	@$(TEST) -m slow tests

# Mutants of each format; a stopped campaign goes on with the FIRST that it named last. Failing mutants stay in build/fuzz.
MUTANTS := 10000000
FIRST   := 0
FORMATS :=
fuzz: $(MODULE) $(VENV)/.extra-test
	@$(BIN)/python -m tests.fuzz $(FORMATS) --first $(FIRST) --count $(MUTANTS)

# build/guided keeps inputs that reach new code, for the next run.
SECONDS := 60
fuzz-guided: $(MODULE) $(VENV)/.extra-test $(VENV)/.extra-fuzz
	@formats=$$($(BIN)/python -m tests.fuzz.seeds --plain build/guided) || exit 1; \
	for format in $(or $(FORMATS),$$formats); do \
	    echo "Fuzzing $$format for $(SECONDS) seconds"; \
	    $(BIN)/python -m tests.fuzz.guided $$format build/guided/fuzz_$$format -dict=build/guided/fuzz_$$format.dict \
	        -max_len=4096 -timeout=10 -rss_limit_mb=2048 -artifact_prefix=build/guided/ -print_final_stats=1 \
	        -max_total_time=$(SECONDS) 2> build/guided/$$format.log || { tail -n 40 build/guided/$$format.log; exit 1; }; \
	    grep "number_of_executed_units\|new_units_added" build/guided/$$format.log; done

# finalfusion-python, which needs Python 3.11, may not build here; then the other rivals are measured. Timed processes run as
# users start them, so Python may cache its compiled files.
bench: $(MODULE) $(MODEL) $(VENV)/.extra-bench $(VENV)/.rivals
	@$(MAKE) --no-print-directory $(OTHER)/.installed || echo "finalfusion-python cannot be built here: it is left out"
	@echo "Running the benchmarks; this takes about ten minutes"
	@unset PYTHONDONTWRITEBYTECODE; WEIGHTMAP_FINALFUSION="$(CURDIR)/$(OTHER)/bin/python" $(PYTEST) --quiet \
	    --benchmark-only --benchmark-json=benchmark.json --benchmark-group-by=group \
	    --benchmark-columns=min,median,iqr,rounds -rs $(BENCHMARKS)

# One file of ggml from a source distribution of llama.cpp, compiled for this machine's CPU.
GGML := build/ggml
$(GGML)/libggml.so: requirements/ggml.txt benchmarks/ggml_alone.c | $(BASE)
	@echo "Downloading llama-cpp-python's sources, and compiling ggml-quants.c"
	@rm -rf $(GGML) && mkdir -p $(GGML)
	@$(PIP) download --no-deps --no-binary :all: --dest $(GGML) -r $<
	@tar -xzf $(GGML)/*.tar.gz -C $(GGML) --strip-components=3 --wildcards '*/vendor/llama.cpp/ggml/src/*.[ch]' \
	    '*/vendor/llama.cpp/ggml/include/*'
	@$(CC) -O3 -march=native -DNDEBUG -w -fPIC -shared -I$(GGML)/ggml/src -I$(GGML)/ggml/include -o $@ \
	    $(GGML)/ggml/src/ggml-quants.c benchmarks/ggml_alone.c -lm

bench-ggml: $(MODULE) $(VENV)/.extra-bench $(GGML)/libggml.so
	@unset PYTHONDONTWRITEBYTECODE; WEIGHTMAP_GGML="$(CURDIR)/$(GGML)/libggml.so" $(PYTEST) --quiet --benchmark-only \
	    --benchmark-json=benchmark-ggml.json --benchmark-group-by=group --benchmark-columns=min,median,iqr,rounds -rs \
	    benchmarks/bench_ggml.py

ggml-test: $(MODULE) $(VENV)/.extra-test $(GGML)/libggml.so
	@WEIGHTMAP_GGML="$(CURDIR)/$(GGML)/libggml.so" $(PYTEST) -n 0 tests/kernels/test_ggml_upstream.py

report: $(VENV)/.extra-docs
	@$(BIN)/python benchmarks/report.py
	@echo "Wrote docs/benchmarks.md and build/benchmarks/"

quantisation-table: $(MODULE) $(MODEL) $(VENV)/.extra-bench $(VENV)/.extra-demo
	@echo "Quantising all-MiniLM-L6-v2 in every scheme; this takes a minute or two"
	@$(BIN)/python benchmarks/quantise_minilm.py --into docs/quantisation.md

lint: $(VENV)/.extra-lint
	@echo "Checking style with ruff"
	@$(BIN)/ruff check --quiet --output-format=concise
	@$(BIN)/ruff format --check --quiet && $(BIN)/clang-format --dry-run --Werror $(C_LAID_OUT) || \
	    { echo "Some files are laid out differently: run make format"; exit 1; }
	@echo "Checking types with mypy"
	@$(BIN)/mypy
	@echo "Checking the C sources with $(CC)"
	@headers=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])'); \
	for file in $(filter %.c,$(C_SOURCES)); do $(CC) -isystem $$headers -O1 $(C_FLAGS) -fsyntax-only $$file || exit 1; done
	@$(MAKE) --no-print-directory types

format: $(VENV)/.extra-lint
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format
	@$(BIN)/clang-format -i $(C_LAID_OUT)

wheel: $(VENV)/.extra-test
	@echo "Building dist/"
	@$(BIN)/python -m build --no-isolation > $(VENV)/build.log 2>&1 || { tail -n 40 $(VENV)/build.log; exit 1; }
	@ls dist

clean:
	@rm -rf $(VENV) $(OTHER) .venv-clients .venv-torch .venv-experts .venv-quantised .venv-llama .venv-vllm .venv-gensim .venv-modelexpress .venv-distributed .venv-device build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .demo
	@rm -f src/weightmap/_kernels*.so src/weightmap/_kernels.c benchmark.json benchmark-ggml.json benchmark-device.json
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

$(VENV)/.rivals: requirements/rivals.txt $(BASE)
	@echo "Installing the heavy rivals (PyTorch among them)"
	@$(PIP) install -r $<
	@touch $@

# Without its dependencies, which include PyTorch: only its files are needed.
$(MODEL): requirements/model.txt $(BASE)
	@echo "Installing the all-MiniLM-L6-v2 checkpoint (80 MB)"
	@$(PIP) install --no-deps -r $<
	@touch $@

# finalfusion-python builds only with an old Cython and numpy, so it gets its own environment.
OTHER := .venv-finalfusion
$(OTHER)/.installed: requirements/finalfusion.txt requirements/finalfusion-build.txt
	@echo "Building finalfusion-python in $(OTHER)"
	@rm -rf $(OTHER) && $(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/python -m pip --quiet --disable-pip-version-check install -r requirements/finalfusion-build.txt
	@$(OTHER)/bin/python -m pip --quiet --disable-pip-version-check install --no-build-isolation -r requirements/finalfusion.txt
	@touch $@

finalfusion-test: $(MODULE) $(VENV)/.extra-test $(OTHER)/.installed
	@WEIGHTMAP_FINALFUSION="$(CURDIR)/$(OTHER)/bin/python" $(PYTEST) tests/formats/finalfusion/test_finalfusion_upstream.py

# What users of safetensors lean on, in an environment of its own: PyTorch, jax, and the libraries that import safetensors.
# Another folder, such as one made before: make clients-test CLIENTS=/tmp/clients
CLIENTS := .venv-clients
CLIENTS_TESTS := $(addprefix tests/integration/test_,clients.py compat.py compat_surface.py compat_others.py compat_suite.py compat_torch.py \
    dlpack.py docs.py::test_the_snippets_of_a_guide_run jax.py load_into.py torch.py)
$(CLIENTS)/.installed: requirements/clients.txt
	@echo "Installing PyTorch, jax and the clients of safetensors in $(CLIENTS)"
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

clients-test: $(MODULE) $(CLIENTS)/.installed
	@WEIGHTMAP_CLIENTS=1 PYTHONPATH="$(CURDIR)/src" $(CLIENTS)/bin/python -m pytest -p no:cacheprovider $(CLIENTS_TESTS)

# vLLM's build for processors, at the versions that work together. Nothing else may be installed with it: a torchvision or
# triton for CUDA breaks it. Another folder: make vllm-test VLLM=/tmp/vllm
VLLM := .venv-vllm
$(VLLM)/.installed: requirements/vllm.txt
	@echo "Installing vLLM in $(VLLM)"
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps -r $<
	@touch $@

# PyTorch as the oracle of checkpoints. Another folder: make torch-test TORCH=/tmp/torch
TORCH := .venv-torch
$(TORCH)/.installed: requirements/torch.txt
	@echo "Installing PyTorch in $(TORCH)"
	@test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

torch-test: $(MODULE) $(TORCH)/.installed
	@WEIGHTMAP_TORCH=1 PYTHONPATH="$(CURDIR)/src" $(TORCH)/bin/python -m pytest -p no:cacheprovider \
	    tests/integration/test_checkpoints.py fuzz/pickles

# Experts from a pool, with transformers 5 and then with 4, which lies in a folder of its own before it. Another folder:
# make experts-test EXPERTS=/tmp/experts
EXPERTS := .venv-experts
$(EXPERTS)/.installed: requirements/experts.txt requirements/experts-4.txt
	@echo "Installing PyTorch and transformers in $(EXPERTS)"
	@test -x $(EXPERTS)/bin/python || $(PYTHON) -m venv $(EXPERTS)
	@$(EXPERTS)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@$(EXPERTS)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --upgrade --target $(EXPERTS)/transformers-4 \
	    -r requirements/experts-4.txt
	@touch $@

experts-test: $(MODULE) $(EXPERTS)/.installed
	@for older in "" ":$(abspath $(EXPERTS))/transformers-4"; do \
	    WEIGHTMAP_EXPERTS=1 PYTHONPATH="$(CURDIR)/src$$older" $(EXPERTS)/bin/python -m pytest -p no:cacheprovider \
	        tests/integration/test_experts.py || exit 1; done

# The libraries that write quantised checkpoints, as oracles. Another folder: make quantised-test QUANTISED=/tmp/quantised
QUANTISED := .venv-quantised
$(QUANTISED)/.installed: requirements/quantised.txt requirements/quantised-gptq.txt
	@echo "Installing transformers, compressed-tensors, gptqmodel and bitsandbytes in $(QUANTISED)"
	@test -x $(QUANTISED)/bin/python || $(PYTHON) -m venv $(QUANTISED)
	@$(QUANTISED)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@$(QUANTISED)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps -r requirements/quantised-gptq.txt
	@touch $@

quantised-test: $(MODULE) $(QUANTISED)/.installed
	@WEIGHTMAP_QUANTISED=1 PYTHONPATH="$(CURDIR)/src" $(QUANTISED)/bin/python -m pytest -p no:cacheprovider \
	    tests/integration/test_quantised.py

# llama.cpp, its converter and transformers as oracles of GGUF. Compiling takes ten minutes, once. Another folder:
# make llama-test LLAMA=/tmp/llama
LLAMA := .venv-llama
$(LLAMA)/.installed: requirements/llama.txt
	@echo "Installing transformers, and compiling llama.cpp, in $(LLAMA)"
	@test -x $(LLAMA)/bin/python || $(PYTHON) -m venv $(LLAMA)
	@$(LLAMA)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@rm -rf $(LLAMA)/llama.cpp && mkdir -p $(LLAMA)/llama.cpp
	@$(LLAMA)/bin/python -m pip --quiet --disable-pip-version-check download --no-deps --no-binary :all: \
	    -d $(LLAMA)/llama.cpp -r requirements/ggml.txt
	@tar -xzf $(LLAMA)/llama.cpp/*.tar.gz -C $(LLAMA)/llama.cpp --strip-components=3 --wildcards \
	    '*/vendor/llama.cpp/conver*' '*/vendor/llama.cpp/gguf-py/*'
	@touch $@

llama-test: $(MODULE) $(LLAMA)/.installed
	@WEIGHTMAP_LLAMA="$(abspath $(LLAMA))/llama.cpp" PYTHONPATH="$(CURDIR)/src" $(LLAMA)/bin/python -m pytest -p no:cacheprovider -rs \
	    tests/llama tests/integration/test_llama_cpp.py

vllm-test: $(MODULE) $(VENV)/.extra-test $(VLLM)/.installed
	@WEIGHTMAP_VLLM="$(abspath $(VLLM))/bin/python" $(PYTEST) tests/integration/test_vllm.py tests/integration/test_vllm_server.py

# Engines past one machine, run on this one: ranks of torch.distributed, jax and MPI, executors, object stores. What is not
# installed or not there, such as nginx, is skipped visibly. Another folder: make distributed-test DISTRIBUTED=/tmp/engines
DISTRIBUTED := .venv-distributed
DISTRIBUTED_TESTS := tests/distributed tests/remote/test_reading_ahead.py
$(DISTRIBUTED)/.installed: requirements/distributed.txt
	@echo "Installing PyTorch, jax, MPI and the other engines in $(DISTRIBUTED)"
	@test -x $(DISTRIBUTED)/bin/python || $(PYTHON) -m venv $(DISTRIBUTED)
	@$(DISTRIBUTED)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

distributed-test: $(MODULE) $(DISTRIBUTED)/.installed
	@WEIGHTMAP_DISTRIBUTED=1 PYTHONPATH="$(CURDIR)/src" $(DISTRIBUTED)/bin/python -m pytest -p no:cacheprovider -rs \
	    $(DISTRIBUTED_TESTS)

# Loading to GPUs. Without one, Triton's interpreter runs the kernels that decode, its compiler makes their machine code, and
# the other tests are skipped visibly.
# Another folder, such as one with PyTorch for processors: make device-test DEVICE=/tmp/device
DEVICE := .venv-device
DEVICE_TESTS := $(addprefix tests/integration/test_,device_gpu.py triton.py triton_compiled.py torch.py load_into.py) \
    tests/plans/test_device.py
$(DEVICE)/.installed: requirements/device.txt
	@echo "Installing PyTorch, Triton and the other loaders in $(DEVICE)"
	@test -x $(DEVICE)/bin/python || $(PYTHON) -m venv $(DEVICE)
	@$(DEVICE)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

device-test: $(MODULE) $(DEVICE)/.installed
	@TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= PYTHONPATH="$(CURDIR)/src" $(DEVICE)/bin/python -m pytest -p no:cacheprovider \
	    -rs tests/integration/test_triton.py
	@PYTHONPATH="$(CURDIR)/src" $(DEVICE)/bin/python -m pytest -p no:cacheprovider -rs $(DEVICE_TESTS)

device-bench: $(MODULE) $(DEVICE)/.installed
	@PYTHONPATH="$(CURDIR)/src" $(DEVICE)/bin/python -m pytest -p no:cacheprovider --quiet --benchmark-only \
	    --benchmark-json=benchmark-device.json --benchmark-group-by=group --benchmark-columns=min,median,iqr,rounds -rs \
	    benchmarks/bench_device.py

# gensim as an oracle for its files and for analogies, in an environment of its own.
GENSIM := .venv-gensim
$(GENSIM)/.installed: requirements/gensim.txt
	@echo "Installing gensim in $(GENSIM)"
	@test -x $(GENSIM)/bin/python || $(PYTHON) -m venv $(GENSIM)
	@$(GENSIM)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@touch $@

gensim-test: $(MODULE) $(GENSIM)/.installed
	@PYTHONPATH="$(CURDIR)/src" $(GENSIM)/bin/python -m pytest -p no:cacheprovider -k gensim tests/words

# NVIDIA's ModelExpress as the other side of deltas. Another folder: make modelexpress-test MODELEXPRESS=/tmp/modelexpress
MODELEXPRESS := .venv-modelexpress
$(MODELEXPRESS)/.installed: requirements/modelexpress.txt
	@echo "Installing ModelExpress in $(MODELEXPRESS)"
	@test -x $(MODELEXPRESS)/bin/python || $(PYTHON) -m venv $(MODELEXPRESS)
	@$(MODELEXPRESS)/bin/python -m pip --quiet --disable-pip-version-check install -r $<
	@$(MODELEXPRESS)/bin/python -m pip --quiet --disable-pip-version-check install --no-deps modelexpress==0.7.0
	@touch $@

modelexpress-test: $(MODULE) $(VENV)/.extra-test $(MODELEXPRESS)/.installed
	@WEIGHTMAP_MODELEXPRESS="$(abspath $(MODELEXPRESS))/bin/python" $(PYTEST) -n 0 tests/deltas/test_modelexpress.py

# The browser and its driver come from the system: apt install chromium chromium-driver.
$(VENV)/.browser: requirements/browser.txt $(BASE)
	@echo "Installing what drives a browser"
	@$(PIP) install -r $<
	@touch $@

browser-test: $(MODULE) $(VENV)/.extra-test $(VENV)/.browser
	@WEIGHTMAP_BROWSER=1 $(PYTEST) -n 0 tests/browser

include checks.mk
include release.mk
