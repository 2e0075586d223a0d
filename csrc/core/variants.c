/* The variants in use. Kernels' callers ask here, and select.c, which knows every kernel, sets them when the module is loaded. */
#include "core/internal.h"

static const wm_variants *ATOMIC in_use;

const wm_variants *wm_variants_in_use(void) { return in_use; }

void wm_use_variants(const wm_variants *chosen) { in_use = chosen; }
