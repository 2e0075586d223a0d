#!/bin/bash -eu
# Run by OSS-Fuzz in a checkout: the package with its C module under the sanitiser (by CFLAGS, which setup.py heeds), one
# program for each harness, and beside it what it begins with.
pip3 install .
python3 tests/fuzz/oss_fuzz/seeds.py "$OUT"
for harness in tests/fuzz/oss_fuzz/fuzz_*.py; do
    compile_python_fuzzer "$harness" --paths . --add-data tests/data:tests/data --collect-submodules weightmap
done
