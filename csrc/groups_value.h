/* What all variants of the decoding of groups share: see groups.h. */
#ifndef WEIGHTMAP_GROUPS_VALUE_H
#define WEIGHTMAP_GROUPS_VALUE_H
#include "coded_value.h"

enum { PLANES = 8, TILE = LANES * PLANES, ACROSS = 32 };
enum { ALONG_COLUMNS = 0, ALONG_ROWS = 1 };

/* AWQ: the output, of the eight of a word, whose code is each nibble. */
static const uint8_t output_of_nibble[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* groups.c: the columns from `from` on of rows [begin, end), each element by itself. */
void wm_grouped_one_by_one(const wm_grouped *w, uint64_t begin, uint64_t end, uint64_t from);

#endif
