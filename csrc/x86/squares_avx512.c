/* The sum of squares, compiled for AVX-512. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define NAME squares_x86_avx512
#define WIDTH 8
#include "quant/squares_block.h"
#endif
