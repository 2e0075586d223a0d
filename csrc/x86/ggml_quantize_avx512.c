/* Compiles ggml_quantize.h for AVX-512: the compiler maps its lanes onto wider registers. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define NAME ggml_quantize_x86_avx512
#include "quant/ggml_quantize.h"
#endif
