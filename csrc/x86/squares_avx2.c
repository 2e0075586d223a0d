/* The sum of squares, compiled for AVX2. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx2")
#define NAME squares_x86_avx2
#define WIDTH 4
#include "quant/squares_block.h"
#endif
