/* The search for scales, compiled for AVX-512: the sixteen lanes are one register. */
#include "../internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define NAME quantize_x86_avx512
#include "../quantize_block.h"
#endif
