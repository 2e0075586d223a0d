/* A strict reader of JSON text: RFC 8259 and nothing beyond it.
 *
 * There is no tree: the caller knows what may come next and asks for it. Each function takes the position p and returns the
 * position after what it read, or NULL with the fault filled in. The position is passed by value, so that it stays in a
 * register. No function reads at or past `end`, and none recurses.
 */
#ifndef WEIGHTMAP_JSON_H
#define WEIGHTMAP_JSON_H
#include "core/internal.h"

enum { WM_JSON_DEPTH = 64 }; /* how deep skipped objects and arrays may nest */

typedef struct {
    const uint8_t *text, *end;
    wm_fault *fault; /* may be NULL */
    uint64_t row;    /* goes into the fault */
} wm_json;

/* Reads the string whose opening quote must be at p. Writes it to out, unescaped and checked to be UTF-8, and its length to
 * *length. At no point are more bytes written than read, the quote counted: `out` needs as much room as the text. */
const uint8_t *wm_json_string(const wm_json *json, const uint8_t *p, uint8_t *out, uint64_t *length);

/* Skips the value at p. Checks its syntax, to a depth of WM_JSON_DEPTH (fault: WM_FAULT_JSON_METADATA). `scratch` has room for
 * as many bytes as the value. */
const uint8_t *wm_json_skip(const wm_json *json, const uint8_t *p, uint8_t *scratch);

/* Reads a non-negative integer below 2^64 without sign, fraction or exponent. */
const uint8_t *wm_json_u64(const wm_json *json, const uint8_t *p, uint64_t *value);

static inline const uint8_t *json_fail(const wm_json *json, int32_t code, const uint8_t *at) {
    wm_fail(json->fault, code, json->row, (uint64_t)(at - json->text), 0, 0);
    return NULL;
}

/* Skips white space: four characters, none of which is greater than a space. */
static inline const uint8_t *json_space(const wm_json *json, const uint8_t *p) {
    while (p < json->end && *p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/* Skips white space and `token`; fails when anything else follows the white space. */
static inline const uint8_t *json_token(const wm_json *json, const uint8_t *p, char token) {
    p = json_space(json, p);
    return p < json->end && *p == token ? p + 1 : json_fail(json, WM_FAULT_JSON_SYNTAX, p);
}

/* 1 when `byte` is at p. */
static inline int json_at(const wm_json *json, const uint8_t *p, char byte) { return p < json->end && *p == byte; }

#endif
