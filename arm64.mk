# make -f arm64.mk arm64-test: the arm64 kernels, cross-compiled and run under an emulator. Included by the Makefile.
#
# On Debian and Ubuntu it needs the packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user. On an arm64
# machine the native compiler serves: make -f arm64.mk arm64-test ARM64_CC=cc ARM64_RUN=

ARM64_CC ?= aarch64-linux-gnu-gcc
ARM64_RUN ?= qemu-aarch64
KERNELS_TEST = tests/c/kernels_test.c $(wildcard csrc/*.c csrc/x86/*.c csrc/arm/*.c)
KERNELS_FLAGS = -std=c11 -Wall -Wextra -Wno-unused-parameter -Werror -Icsrc -pthread

.PHONY: arm64-test sanitize-test

arm64-test:
	@for tool in $(ARM64_CC) $(ARM64_RUN); do command -v $$tool >/dev/null || { \
		echo "arm64-test: $$tool is missing; apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"; \
		exit 1; }; done
	@mkdir -p build
	$(ARM64_CC) $(KERNELS_FLAGS) -O3 -static $(KERNELS_TEST) -o build/kernels_test_arm64 -lm
	$(ARM64_RUN) build/kernels_test_arm64

# The same driver on this machine, under the sanitisers; VPCLMULQDQ and GF2P8AFFINEQB emulated.
sanitize-test:
	@mkdir -p build
	$(CC) $(KERNELS_FLAGS) -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined \
		-DWEIGHTMAP_EMULATE_AVX512ICL $(KERNELS_TEST) -o build/kernels_test_sanitize -lm
	build/kernels_test_sanitize
