#!/bin/sh
# Runs tests with a wheel inside the root of another system, as root: packaging/wheels_test.sh ROOT PYTHON WHEEL [TEST...]
#
# ROOT is a directory as debootstrap makes it, with a Python from 3.11 on at PYTHON within it. Of another architecture it
# runs under qemu-user: mount binfmt_misc, and install qemu-user-static. What was tried:
#
#     debootstrap --variant=minbase --include=gcc,make,libc6-dev,zlib1g-dev,libffi-dev xenial ROOT MIRROR   (glibc 2.23)
#     chroot ROOT sh -c 'cd /src && ./configure --prefix=/opt/python --without-ensurepip && make && make altinstall'
#     packaging/wheels_test.sh ROOT /opt/python/bin/python3.11 dist/weightmap-*manylinux_2_17_x86_64.whl
#
#     debootstrap --arch=arm64 --variant=minbase --include=python3 bookworm ROOT MIRROR
#     packaging/wheels_test.sh ROOT python3.11 dist/weightmap-*manylinux_2_17_aarch64.whl
#
# The musllinux wheel of x86-64 was loaded by a CPython 3.11 that musl-gcc built (musl 1.2.3), with numpy 1.26; 352 tests ran.
# ml_dtypes has no wheel for musl: pip compiles it there, and without it tests of bfloat16 and float8 are not collected.
#
# The packages that the tests need come as wheels for that system, by the pip of this one. Tests of rivals skip themselves.
set -eu
root=$1 python=$2 wheel=$3
shift 3
machine=$(chroot "$root" uname -m)
here=$(dirname "$0")/..
rm -rf "$root/weightmap"
mkdir -p "$root/weightmap/site" "$root/weightmap/wheels"
# No package here needs more than glibc 2.17, so that the oldest system is served too.
python3 -m pip download --quiet --only-binary :all: --python-version 3.11 --platform "manylinux_2_17_$machine" \
    --platform "manylinux2014_$machine" --dest "$root/weightmap/wheels" \
    'numpy<2' 'cffi>=2' ml_dtypes pytest pytest-xdist pytest-benchmark hypothesis rich tomli-w
for each in "$root"/weightmap/wheels/*.whl "$wheel"; do
    python3 -m zipfile -e "$each" "$root/weightmap/site"
done
cp -r "$here/tests" "$here/benchmarks" "$here/csrc" "$here/pyproject.toml" "$root/weightmap"
test -e "$root/dev/urandom" || mount --bind /dev "$root/dev"
test -e "$root/proc/self" || mount -t proc proc "$root/proc"
[ $# -gt 0 ] || set -- tests/core/native tests/core/table tests/core/model tests/core/formats/embd tests/contract
exec chroot "$root" env PYTHONPATH=/weightmap/site HOME=/tmp sh -c "cd /weightmap && exec $python -m pytest \
    -p no:cacheprovider -q -n 0 --continue-on-collection-errors $*"
