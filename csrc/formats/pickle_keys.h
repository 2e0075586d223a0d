/* Repeated keys of a dictionary: see pickle_keys.c. */
#ifndef WEIGHTMAP_PICKLE_KEYS_H
#define WEIGHTMAP_PICKLE_KEYS_H
#include "formats/pickle_machine.h"

/* Checks that a dictionary has no key twice, with a step of 2; or a set no member, with 1. *bytes counts the bytes of keys
 * compared, `limit` at most. Returns 0, the WM_FAULT_ constant of a defect, or -1 when the program cannot be read. */
int wm_pickle_keys(reader *in, const uint64_t *arena, container c, uint64_t step, uint64_t *bytes, uint64_t limit);
#endif
