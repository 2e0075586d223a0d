/* The decoders of ggml_avx2.c with stores past the caches. */
#define STREAMED
#include "x86/ggml_avx2.c"
