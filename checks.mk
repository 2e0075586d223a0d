# The slow and the deep checks: fuzzing, sanitisers, coverage, arm64. The Makefile includes this file.

CLANG ?= clang
CHECKS := build/checks

.PHONY: fuzz fuzz-guided fuzz-c sanitize sanitize-test tsan-test coverage arm64-test

# --------------------------------------------------------------------------------- the module under the sanitisers
# A choice of tests: make sanitize SANITIZE_TESTS="-n 2 tests/core/native/test_crc32.py". tests/sanitised.py lists the tests left
# out, with reasons, and the options of the sanitisers; `make test-all` runs a part.
SANITIZE_TESTS := tests
SANITIZED := build/sanitize/lib

build/sanitize/.built: $(BASE) setup.py $(C_SOURCES) $(shell find src -name '*.py')
	@echo "Compiling the C module with the address and undefined-behaviour sanitisers"
	@CC=gcc WEIGHTMAP_SANITIZE=address,undefined $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib $(SANITIZED)
	@touch $@

## sanitize: all tests with the C module under the address and undefined-behaviour sanitisers
sanitize: build/sanitize/.built sanitize-test $(MODULE) $(MODEL) $(VENV)/.extra-test
	@echo "Running the tests with it"
	@$(BIN)/python -m tests.sanitised $(SANITIZED) -rs $(SANITIZE_TESTS)

# VPCLMULQDQ is emulated.
## sanitize-test: the kernels alone under these sanitisers
sanitize-test:
	@mkdir -p $(CHECKS)
	$(CC) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -DWEIGHTMAP_EMULATE_VPCLMULQDQ \
	    -o $(CHECKS)/kernels_test_sanitize $(KERNELS_TEST)
	$(CHECKS)/kernels_test_sanitize

## tsan-test: the kernels that start threads, under the thread sanitiser
tsan-test:
	@mkdir -p $(CHECKS)
	$(CC) -O2 -g -fsanitize=thread -o $(CHECKS)/kernels_test_tsan $(KERNELS_TEST)
	$(CHECKS)/kernels_test_tsan threads

# --------------------------------------------------------------------------------------------------- mutants, atheris
# To continue a stopped campaign, pass the FIRST that it named last. Failing mutants stay in build/fuzz.
MUTANTS := 10000000
FIRST   := 0
FORMATS :=
## fuzz: 10,000,000 mutants of every format, numbered: MUTANTS=100000 FIRST=0 FORMATS='amb embd'
fuzz: $(MODULE) $(VENV)/.extra-test
	@$(BIN)/python -m tests.fuzz $(FORMATS) --first $(FIRST) --count $(MUTANTS)

# build/guided keeps inputs that reach new code, for the next run.
SECONDS := 60
## fuzz-guided: every reader under atheris, for SECONDS=60 each
fuzz-guided: $(MODULE) $(VENV)/.extra-test $(VENV)/.extra-fuzz
	@formats=$$($(BIN)/python -m tests.fuzz.seeds --plain build/guided) || exit 1; \
	for format in $(or $(FORMATS),$$formats); do \
	    echo "Fuzzing $$format for $(SECONDS) seconds"; \
	    $(BIN)/python -m tests.fuzz.guided $$format build/guided/fuzz_$$format -dict=build/guided/fuzz_$$format.dict \
	        -max_len=4096 -timeout=10 -rss_limit_mb=2048 -artifact_prefix=build/guided/ -print_final_stats=1 \
	        -max_total_time=$(SECONDS) 2> build/guided/$$format.log || { tail -n 40 build/guided/$$format.log; exit 1; }; \
	    grep "number_of_executed_units\|new_units_added" build/guided/$$format.log; done

# --------------------------------------------------------------------------------------------------------- libFuzzer
# Runs all targets in turn, FUZZ_SECONDS each; build/checks/fuzz/found keeps inputs for the next run. A single target:
# make fuzz-c FUZZ_TARGETS=records FUZZ_SECONDS=600
FUZZ_SECONDS := 60
FUZZ_TARGETS := $(patsubst fuzz/c/%.c,%,$(wildcard fuzz/c/*.c))
# Beside undefined behaviour: unintended wrapping of unsigned arithmetic, and conversions that lose bits.
FUZZ_CHECKS := undefined,unsigned-integer-overflow,implicit-conversion
FUZZ_FLAGS = $(C_FLAGS) -O1 -g -fsanitize=address,$(FUZZ_CHECKS) \
    -fno-sanitize-recover=$(FUZZ_CHECKS) -fsanitize-ignorelist=fuzz/c/wraps.txt
FUZZ := $(CHECKS)/fuzz

$(FUZZ)/%.o: csrc/%.c fuzz/c/wraps.txt $(wildcard csrc/*/*.h)
	@mkdir -p $(@D)
	@$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -c $< -o $@

$(FUZZ)/%: fuzz/c/%.c fuzz/c/target.h fuzz/c/wraps.txt $(patsubst csrc/%.c,$(FUZZ)/%.o,$(KERNELS))
	@$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer $(filter %.c %.o,$^) -o $@ -pthread -lm

## fuzz-c: libFuzzer on the scanners of indexes, a minute each
fuzz-c: $(MODULE) $(VENV)/.extra-test
	@echo 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return !p && n; }' | \
	    $(CLANG) -fsanitize=fuzzer -x c - -o /dev/null 2> /dev/null || \
	    { echo "fuzz-c needs clang with libFuzzer; on Debian: apt install clang libclang-rt-14-dev"; exit 1; }
	@$(MAKE) --no-print-directory $(addprefix $(FUZZ)/,$(FUZZ_TARGETS))
	@$(BIN)/python fuzz/c/seeds.py $(FUZZ)/seeds
	@for target in $(FUZZ_TARGETS); do \
	    mkdir -p $(FUZZ)/found/$$target $(FUZZ)/seeds/$$target; \
	    echo "Fuzzing $$target for $(FUZZ_SECONDS) seconds"; \
	    $(FUZZ)/$$target -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 -rss_limit_mb=1024 -verbosity=0 \
	        -print_final_stats=1 -artifact_prefix=$(FUZZ)/$$target- $(FUZZ)/found/$$target $(FUZZ)/seeds/$$target || exit 1; done

# ------------------------------------------------------------------------------------------------------------ coverage
# tests/branches.py lists the tests that take the branches of the parsers, the writers and the tables.
## coverage: the branches of parsers and tables: fails below 97 % of them
coverage: $(MODULE) $(VENV)/.extra-test $(VENV)/.extra-checks
	@mkdir -p $(CHECKS)
	@$(BIN)/python -m tests.branches --data-file=$(CHECKS)/coverage

# ------------------------------------------------------------------------------------------------------------ arm64
# On Debian and Ubuntu it needs the packages
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user. On an arm64 machine the native compiler serves:
# make arm64-test ARM64_CC=cc ARM64_RUN=
ARM64_CC ?= aarch64-linux-gnu-gcc
ARM64_RUN ?= qemu-aarch64

## arm64-test: the arm64 kernels, cross-compiled and run under an emulator
arm64-test:
	@for tool in $(ARM64_CC) $(ARM64_RUN); do command -v $$tool >/dev/null || { \
		echo "arm64-test: $$tool is missing; apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"; \
		exit 1; }; done
	@mkdir -p $(CHECKS)
	$(ARM64_CC) -O3 -static -o $(CHECKS)/kernels_test_arm64 $(KERNELS_TEST)
	$(ARM64_RUN) $(CHECKS)/kernels_test_arm64
