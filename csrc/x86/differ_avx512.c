/* The comparison of tensors, compiled for AVX-512. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define NAME differ_x86_avx512
#define WIDTH 8
#include "core/differ_block.h"
#endif
