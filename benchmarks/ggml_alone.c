/* Functions of ggml that ggml-quants.c names, but never calls to decode or quantise rows. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

void ggml_abort(const char *file, int line, const char *format, ...) { abort(); }
size_t ggml_row_size(int type, int64_t n) { abort(); }
const char *ggml_type_name(int type) { abort(); }
size_t ggml_type_size(int type) { abort(); }
