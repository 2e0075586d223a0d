/* The sum of squares, portable. It is finite when all floats are: the largest is 3.4e38, and float64 reaches to 1.8e308. */
#include "core/internal.h"

#define TARGET
#define NAME squares_portable
#define WIDTH 2
#include "quant/squares_block.h"

double wm_sum_of_squares(const float *x, uint64_t n) { return wm_variants_in_use()->squares(x, n); }
