# Other libraries as oracles and clients, each in its own environment: .venv-NAME. The Makefile includes this file.

# NAME-test of the first group runs the tests in the oracle's environment; the others run in .venv and start the oracle's
# Python.
IN_ORACLE  := clients torch experts quantised llama distributed device gensim newest
IN_VENV    := vllm modelexpress finalfusion
.PHONY: $(addsuffix -test,$(IN_ORACLE) $(IN_VENV) ggml browser) bench-ggml device-bench workflows

# ------------------------------------------------------------------------------------------------- the environments
# Each installs requirements/NAME.txt. The table has, for some, steps before and after it, and options; `PIP_IN` is the
# environment's pip.
PIP_IN = @$(@D)/bin/python -m pip --quiet --disable-pip-version-check

$(ORACLES)%/.installed: requirements/%.txt
	@echo "Installing requirements/$*.txt in $(@D)"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(BEFORE_$*)
	$(PIP_IN) install $(OPTIONS_$*) -r $<
	$(AFTER_$*)
	@touch $@

# vLLM's build for CPUs, at versions that work together: a torchvision or triton for CUDA breaks it.
OPTIONS_vllm := --no-deps

# finalfusion-python builds only with an old Cython and numpy.
$(ORACLES)finalfusion/.installed: requirements/finalfusion-build.txt
BEFORE_finalfusion = $(PIP_IN) install -r requirements/finalfusion-build.txt
OPTIONS_finalfusion := --no-build-isolation

# transformers 4 lies in its own folder, which a second run of the tests puts before transformers 5.
$(ORACLES)experts/.installed: requirements/experts-4.txt
AFTER_experts = $(PIP_IN) install --no-deps --upgrade --target $(@D)/transformers-4 -r requirements/experts-4.txt

$(ORACLES)quantised/.installed: requirements/quantised-gptq.txt
AFTER_quantised = $(PIP_IN) install --no-deps -r requirements/quantised-gptq.txt

# The newest of everything, at each run. Keep torch, whose wheels for Linux include CUDA: TORCH=torch==2.13.0+cpu.
TORCH := torch
.PHONY: always
$(ORACLES)newest/.installed: always
BEFORE_newest = $(PIP_IN) install "$(TORCH)"
OPTIONS_newest := --upgrade
define AFTER_newest
$(PIP_IN) install --no-deps -r requirements/quantised-gptq.txt
@$(@D)/bin/python packaging/sources.py safetensors $(@D)/safetensors
endef

AFTER_modelexpress = $(PIP_IN) install --no-deps modelexpress==0.7.0

# llama.cpp's converter, from the sources whose compiled form llama.txt installs.
define AFTER_llama
@rm -rf $(@D)/llama.cpp && mkdir -p $(@D)/llama.cpp
$(PIP_IN) download --no-deps --no-binary :all: -d $(@D)/llama.cpp -r requirements/ggml.txt
@tar -xzf $(@D)/llama.cpp/*.tar.gz -C $(@D)/llama.cpp --strip-components=3 --wildcards \
    '*/vendor/llama.cpp/conver*' '*/vendor/llama.cpp/gguf-py/*'
endef

# -------------------------------------------------------------------- tests that run in the environment of the oracle
$(IN_ORACLE:%=%-test): %-test: $(MODULE) $(ORACLES)%/.installed
# $(1) is put behind the path of the package.
PYTEST_IN = PYTHONPATH="$(CURDIR)/src$(1)" $(ORACLES)$(@:-test=)/bin/python -m pytest -p no:cacheprovider -rs

## clients-test: transformers and others on weightmap.compat, all tests of torch and jax: an environment of 2 GB
clients-test:
	@WEIGHTMAP_CLIENTS=1 $(PYTEST_IN) tests/compat tests/dlpack tests/jax tests/onnxruntime tests/torch/test_load_into.py tests/torch/test_torch.py \
	    tests/integration/test_docs.py::test_the_snippets_of_a_guide_run

## torch-test: checkpoints that PyTorch writes, beside its own loader
torch-test:
	@WEIGHTMAP_TORCH=1 $(PYTEST_IN) tests/core/formats/torch/test_torch_upstream.py fuzz/pickles

## experts-test: mixtures of experts of transformers 5 and 4 whose experts come from a pool
experts-test:
	@WEIGHTMAP_EXPERTS=1 $(PYTEST_IN) tests/torch/test_experts.py
	@WEIGHTMAP_EXPERTS=1 $(call PYTEST_IN,:$(abspath $(ORACLES)experts)/transformers-4) tests/torch/test_experts.py

## quantised-test: quantised models of transformers and its libraries decoded beside them: an environment of 2 GB
quantised-test:
	@WEIGHTMAP_QUANTISED=1 $(PYTEST_IN) tests/checkpoints/test_quantised.py tests/checkpoints/test_mlx.py \
	    'tests/compat/test_ranks.py::test_ranks_get_the_same_bits[packed-2]' 'tests/compat/test_ranks.py::test_ranks_get_the_same_bits[packed-4]'

## llama-test: models of Hugging Face as GGUF in llama.cpp, beside transformers: compiles it once, an environment of 2 GB
llama-test:
	@WEIGHTMAP_LLAMA="$(abspath $(ORACLES)llama)/llama.cpp" $(PYTEST_IN) tests/llama

# Tests without their programs, such as nginx, are skipped visibly.
## distributed-test: torch.distributed, jax, MPI ranks and object stores on one machine: an environment of 1.5 GB
distributed-test:
	@WEIGHTMAP_DISTRIBUTED=1 $(PYTEST_IN) tests/dcp tests/remote/test_reading_ahead.py tests/remote/test_object_stores.py \
	    tests/conversion/test_dask.py tests/conversion/test_walk_through.py tests/device/test_device_ranks.py

# Without a GPU, Triton's interpreter runs the kernels that decode, its compiler makes their machine code, and the other tests
# are skipped visibly.
## device-test: loading to a GPU: all tests on one, and its kernels by an interpreter, in an environment of 6 GB
device-test:
	@TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES= $(PYTEST_IN) tests/torch/test_triton.py
	@$(PYTEST_IN) tests/device $(addprefix tests/torch/test_,triton.py triton_compiled.py torch.py load_into.py)

## device-bench: the same timed beside other loaders; it needs a GPU
device-bench: $(MODULE) $(ORACLES)device/.installed
	@PYTHONPATH="$(CURDIR)/src" $(ORACLES)device/bin/python -m pytest -p no:cacheprovider $(TIMED) \
	    --benchmark-json=benchmark-device.json benchmarks/bench_device.py

## gensim-test: gensim's files and answers beside ours
gensim-test:
	@$(PYTEST_IN) -k gensim tests/words

## newest-test: the newest libraries that write models; each failure is a line with version and test
newest-test:
	@PYTHONPATH="$(CURDIR)/src" $(ORACLES)newest/bin/python packaging/newest.py $(ORACLES)newest/safetensors/bindings/python/tests

# ---------------------------------------------------------------------------------------------- tests that run in .venv
$(IN_VENV:%=%-test): %-test: $(MODULE) $(VENV)/.extra-test $(ORACLES)%/.installed
ORACLE = WEIGHTMAP_$(1)="$(abspath $(ORACLES)$(@:-test=))/bin/python"

## vllm-test: vLLM on the load format weightmap beside its own: an environment of 2.5 GB, for CPUs
vllm-test:
	@$(call ORACLE,VLLM) $(PYTEST) tests/vllm

## modelexpress-test: versions of models written and read by NVIDIA's ModelExpress beside ours
modelexpress-test:
	@$(call ORACLE,MODELEXPRESS) $(PYTEST) -n 0 tests/deltas/test_modelexpress.py

## finalfusion-test: finalfusion-python reads our files
finalfusion-test:
	@$(call ORACLE,FINALFUSION) $(PYTEST) tests/core/formats/finalfusion/test_finalfusion_upstream.py

# The browser and its driver come from the system: apt install chromium chromium-driver.
## browser-test: the pages of weightmap report in a headless Chromium, which the system has
browser-test: $(MODULE) $(VENV)/.extra-test $(VENV)/.browser
	@WEIGHTMAP_BROWSER=1 $(PYTEST) -n 0 tests/report/test_report_browser.py

# ----------------------------------------------------------------------------------------------------------------- ggml
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

GGML_BUILT = WEIGHTMAP_GGML="$(CURDIR)/$(GGML)/libggml.so"

## ggml-test: values and errors of ggml's blocks beside ggml's own C, downloaded (77 MB) and compiled
ggml-test: $(MODULE) $(VENV)/.extra-test $(GGML)/libggml.so
	@$(GGML_BUILT) $(PYTEST) -n 0 tests/core/native/test_ggml_upstream.py

## bench-ggml: the same timed
bench-ggml: $(MODULE) $(VENV)/.extra-bench $(GGML)/libggml.so
	@unset PYTHONDONTWRITEBYTECODE; $(GGML_BUILT) $(PYTEST) $(TIMED) --benchmark-json=benchmark-ggml.json \
	    benchmarks/bench_ggml.py

# -------------------------------------------------------------------------------------------------------- whole workflows
# Some of them: make workflows WORKFLOWS="loading --turns 9". llama.cpp is timed too where make llama-test has made its environment.
## workflows: whole workflows of users, beside the tools they would run instead, into docs/benchmarks.md: an environment of 2 GB, twenty minutes
WORKFLOWS :=
workflows: $(MODULE) $(ORACLES)workflows/.installed
	@PYTHONPATH="$(CURDIR)/src:$(CURDIR)" $(if $(wildcard $(ORACLES)llama/.installed),WEIGHTMAP_LLAMA="$(abspath $(ORACLES)llama)") \
	    $(ORACLES)workflows/bin/python benchmarks/workflows $(WORKFLOWS)
	$(if $(WORKFLOWS),,@$(BIN)/python benchmarks/report.py --only-workflows && echo "Wrote docs/benchmarks.md")
