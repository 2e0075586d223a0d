#include "../internal.h"
#if WM_X86
void fnv1a32_x86_avx512(const uint8_t *f, const uint8_t *e, const uint32_t *l, uint32_t g, uint64_t n, uint32_t *o) {
    fnv1a32_portable(f, e, l, g, n, o);
}
#endif
