/* The comparison of tensors, compiled for AVX2. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx2")
#define NAME differ_x86_avx2
#define WIDTH 4
#include "core/differ_block.h"
#endif
