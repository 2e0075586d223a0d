#!/bin/bash -eu
# Run by OSS-Fuzz in a checkout: the package with its C module under the sanitiser (by CFLAGS, which setup.py heeds), one
# program for each format, and beside it the inputs that it begins with.
pip3 install .
formats=$(python3 -m tests.fuzz.seeds "$OUT")
for format in $formats; do
    printf 'from tests.fuzz.guided import main\n\nmain("%s")\n' "$format" > "fuzz_$format.py"
    compile_python_fuzzer "fuzz_$format.py" --paths . --add-data tests/data:tests/data --collect-submodules weightmap \
        --collect-submodules tests.builders --collect-submodules tests.attacks
done
