/* Everyday Python objects beside tensors: see pickle_values.c. */
#ifndef WEIGHTMAP_PICKLE_VALUES_H
#define WEIGHTMAP_PICKLE_VALUES_H
#include "formats/pickle_machine.h"

int wm_pickle_collect(machine *m, uint32_t kind, value from);
int wm_pickle_update(machine *m, value from);
int wm_pickle_new_array(machine *m);
int wm_pickle_fill_array(machine *m, uint64_t at, value state);
int wm_pickle_buffer(machine *m, value args);
int wm_pickle_is_odd(const machine *m, value kind);
#endif
