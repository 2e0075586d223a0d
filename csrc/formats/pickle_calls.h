/* The calls of a pickle program: see pickle_calls.c. */
#ifndef WEIGHTMAP_PICKLE_CALLS_H
#define WEIGHTMAP_PICKLE_CALLS_H
#include "formats/pickle_machine.h"

int wm_pickle_name(machine *m, value module, value name);
int wm_pickle_storage(machine *m, value id);
int wm_pickle_call(machine *m, value function, value args);
int wm_pickle_build(machine *m, value target, value state);
int wm_pickle_make(machine *m, value class_, value args);
#endif
