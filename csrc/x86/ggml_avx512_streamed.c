/* The decoders of ggml_avx512.c with stores past the caches. */
#define STREAMED
#include "ggml_avx512.c"
