/* Switches the counting of instructions on and off from within a process that runs under valgrind:
 *
 *     valgrind --tool=callgrind --instr-atstart=no python ...
 *
 * A shared library for ctypes; see tests/contract/test_growth.py. Does nothing without valgrind.
 */
#include <valgrind/callgrind.h>

void count_begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

/* The counts go to a new file, with this label in it. */
void count_end(const char *label) {
    CALLGRIND_DUMP_STATS_AT(label);
    CALLGRIND_STOP_INSTRUMENTATION;
}
