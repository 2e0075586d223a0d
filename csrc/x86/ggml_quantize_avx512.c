/* Quantisation to ggml's blocks, compiled for AVX-512: the compiler makes wider code of the same lanes. */
#include "../internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define NAME ggml_quantize_x86_avx512
#include "../ggml_quantize.h"
#endif
