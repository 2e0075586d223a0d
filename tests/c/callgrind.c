/* Switches the counting of instructions on and off from within a process that runs under valgrind:
 *
 *     valgrind --tool=callgrind --instr-atstart=no python ...
 *
 * A shared library for ctypes; see tests/contract/test_growth.py. Does nothing when no valgrind is there.
 */
#include <valgrind/callgrind.h>

void count_begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

/* What was counted goes to a file of its own, with this label in it. */
void count_end(const char *label) {
    CALLGRIND_DUMP_STATS_AT(label);
    CALLGRIND_STOP_INSTRUMENTATION;
}
