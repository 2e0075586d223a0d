# make arm64-test: the arm64 kernels, cross-compiled and run under an emulator.
#
# On Debian and Ubuntu it needs the packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user. On an arm64
# machine the native compiler serves: make arm64-test ARM64_CC=cc ARM64_RUN=
include variables.mk

ARM64_CC ?= aarch64-linux-gnu-gcc
ARM64_RUN ?= qemu-aarch64

.PHONY: arm64-test

arm64-test:
	@for tool in $(ARM64_CC) $(ARM64_RUN); do command -v $$tool >/dev/null || { \
		echo "arm64-test: $$tool is missing; apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"; \
		exit 1; }; done
	@mkdir -p build
	$(ARM64_CC) -O3 -static -o build/kernels_test_arm64 $(KERNELS_TEST)
	$(ARM64_RUN) build/kernels_test_arm64
