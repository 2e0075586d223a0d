/* Quantisation to ggml's blocks, compiled for AVX2: the compiler makes wider code of the same lanes. */
#include "../internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx2")
#define NAME ggml_quantize_x86_avx2
#include "../ggml_quantize.h"
#endif
