# The variables that the Makefile, oracles.mk and checks.mk share; nothing else defines them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Environments of other libraries are .venv-NAME; elsewhere, as /tmp/oracles/torch: make torch-test ORACLES=/tmp/oracles/
ORACLES := .venv-

# Each step of the environment leaves a stamp: it runs again when one of its inputs has changed, and otherwise costs nothing
# and needs no network.
BASE   := $(VENV)/.base
MODULE := $(VENV)/.module
MODEL  := $(VENV)/.model

# The C sources; all but those in csrc/python are the kernels, which need no Python.
C_SOURCES := $(wildcard csrc/*/*.c csrc/*/*.h csrc/build_ffi.py)
KERNELS   := $(filter-out csrc/python/%,$(filter %.c,$(C_SOURCES)))
# The files that clang-format lays out, in the style of .clang-format.
C_LAID_OUT := $(filter %.c %.h,$(C_SOURCES)) $(wildcard tests/*/*.c fuzz/c/*.c fuzz/c/*.h benchmarks/*.c)
C_FLAGS   := -std=c11 -Wall -Wextra -Wno-unused-parameter -Werror -Icsrc
# The driver that tests the kernels without Python.
KERNELS_TEST := $(C_FLAGS) -pthread tests/c/kernels_test.c $(KERNELS) -lm
