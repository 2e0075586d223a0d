/* Compiles ggml_quantize.h for AVX2: the compiler maps its lanes onto wider registers. */
#include "core/internal.h"

#if WM_X86
#define TARGET WM_TARGET("avx2")
#define NAME ggml_quantize_x86_avx2
#include "quant/ggml_quantize.h"
#endif
