# The compiled module as cffi makes it; csrc/kernels.h tells what `lib` holds.
from typing import Any

ffi: Any
lib: Any
