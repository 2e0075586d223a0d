/* JSON: strings, numbers, and skipping values. See json.h. */
#include "formats/json.h"
#include "core/word_bytes.h"
#include "core/utf8.h"

/* The value of four hexadecimal digits at p, or -1. */
static int32_t hex4(const wm_json *json, const uint8_t *p) {
    int32_t value = 0;
    if (json->end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], letter = c | 0x20; /* capital and small letters differ in this bit */
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if (letter >= 'a' && letter <= 'f')
            value = value << 4 | (letter - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* Writes a character as UTF-8 and returns the position after it. */
static uint8_t *put_utf8(uint8_t *out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (uint8_t)c;
        return out;
    }
    if (c < 0x800) {
        *out++ = (uint8_t)(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            *out++ = (uint8_t)(0xE0 | c >> 12);
        } else {
            *out++ = (uint8_t)(0xF0 | c >> 18);
            *out++ = (uint8_t)(0x80 | (c >> 12 & 0x3F));
        }
        *out++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    }
    *out++ = (uint8_t)(0x80 | (c & 0x3F));
    return out;
}

/* Reads one escape, p at its backslash, within the string that begins at `quote`. Writes fewer bytes than it reads. */
static const uint8_t *read_escape(const wm_json *json, const uint8_t *quote, const uint8_t *p, uint8_t **out) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (json->end - p < 2) return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
    if (p[1] != 'u') {
        const char *letter = p[1] ? strchr(letters, p[1]) : NULL;
        if (!letter) return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
        *(*out)++ = (uint8_t)meanings[letter - letters];
        return p + 2;
    }
    int32_t c = hex4(json, p + 2);
    if (c < 0) return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
    p += 6;
    if (c >= 0xD800 && c <= 0xDFFF) {
        /* A character past U+FFFF is spelled as two surrogates, the high one first. A lone one has no form in UTF-8. */
        int32_t low = json->end - p >= 6 && p[0] == '\\' && p[1] == 'u' ? hex4(json, p + 2) : -1;
        if (c > 0xDBFF || low < 0xDC00 || low > 0xDFFF) return json_fail(json, WM_FAULT_JSON_SURROGATE, quote);
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    }
    *out = put_utf8(*out, (uint32_t)c);
    return p;
}

/* Marks the bytes that are not ordinary in a string: quotes, backslashes, those below 0x20, and those from 0x80 on. XOR with
 * 2 makes 0x20 of a quote (0x22), keeps bytes below 0x20 there, and brings no other byte below 0x21. */
static inline uint64_t special_bytes(uint64_t word) {
    return mark_below(word ^ EVERY_BYTE_1 * 2, 0x21) | mark_equal(word, '\\') | (word & EVERY_MARK);
}

const uint8_t *wm_json_string(const wm_json *json, const uint8_t *p, uint8_t *out, uint64_t *length) {
    const uint8_t *end = json->end, *quote = p;
    const uint8_t *begin = out;
    if (p == end || *p != '"') return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
    p++;
    for (;;) {
        /* Eight bytes at a time, up to one that is not ordinary. All eight are written before it is known how many count.
         * There is room: no more was written than read, and eight more bytes are there. */
        while (end - p >= 8) {
            uint64_t word = load_le64(p);
            uint64_t special = special_bytes(word);
            memcpy(out, p, 8);
            if (special) {
                unsigned ordinary = first_mark(special);
                p += ordinary;
                out += ordinary;
                break;
            }
            p += 8;
            out += 8;
        }
        if (p == end) return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
        if (*p == '"') {
            *length = (uint64_t)(out - begin);
            return p + 1;
        }
        if (*p == '\\') {
            p = read_escape(json, quote, p, &out);
            if (!p) return NULL;
        } else if (*p < 0x20) {
            return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
        } else {
            unsigned n = *p < 0x80 ? 1 : utf8_sequence(p, end);
            if (!n) return json_fail(json, WM_FAULT_JSON_UTF8, quote);
            for (; n; n--) *out++ = *p++;
        }
    }
}

static int is_digit(const wm_json *json, const uint8_t *p) { return p < json->end && *p >= '0' && *p <= '9'; }

const uint8_t *wm_json_u64(const wm_json *json, const uint8_t *p, uint64_t *value) {
    const uint8_t *begin = p;
    /* Nineteen digits cannot overflow; any after them are checked one by one. */
    const uint8_t *safe = json->end - p > 19 ? p + 19 : json->end;
    uint64_t v = 0;
    if (p == json->end) return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
    for (; p < safe; p++) {
        unsigned digit = (unsigned)*p - '0';
        if (digit > 9) break;
        v = v * 10 + digit;
    }
    for (; p >= safe && is_digit(json, p); p++) { /* the twentieth digit, and any after it */
        uint64_t digit = (uint64_t)(*p - '0');
        if (v > (UINT64_MAX - digit) / 10) return json_fail(json, WM_FAULT_JSON_NUMBER, begin);
        v = v * 10 + digit;
    }
    /* Wrong: no digit, a leading zero, a fraction or an exponent. */
    uint8_t next = p < json->end ? *p : 0;
    if (p == begin || (*begin == '0' && p - begin > 1) || next == '.' || (next | 0x20) == 'e')
        return json_fail(json, WM_FAULT_JSON_NUMBER, begin);
    *value = v;
    return p;
}

/* Skips one or more digits. */
static const uint8_t *skip_digits(const wm_json *json, const uint8_t *p) {
    if (!is_digit(json, p)) return json_fail(json, WM_FAULT_JSON_SYNTAX, p);
    while (is_digit(json, p)) p++;
    return p;
}

/* Skips any number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static const uint8_t *skip_number(const wm_json *json, const uint8_t *p) {
    if (json_at(json, p, '-')) p++;
    if (json_at(json, p, '0'))
        p++;
    else if (!(p = skip_digits(json, p)))
        return NULL;
    if (json_at(json, p, '.') && !(p = skip_digits(json, p + 1))) return NULL;
    if (json_at(json, p, 'e') || json_at(json, p, 'E')) {
        p++;
        if (json_at(json, p, '+') || json_at(json, p, '-')) p++;
        return skip_digits(json, p);
    }
    return p;
}

/* Skips a string, a number, true, false or null. */
static const uint8_t *skip_scalar(const wm_json *json, const uint8_t *p, uint8_t *scratch) {
    static const char *const words[] = {"true", "false", "null"};
    uint64_t length;
    if (json_at(json, p, '"')) return wm_json_string(json, p, scratch, &length);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(json->end - p) >= n && memcmp(p, words[i], n) == 0) return p + n;
    }
    return skip_number(json, p);
}

const uint8_t *wm_json_skip(const wm_json *json, const uint8_t *p, uint8_t *scratch) {
    /* The open objects (1) and arrays (0) are a stack of bits, the innermost in bit 0. */
    uint64_t objects = 0, length;
    int depth = 0;
    for (;;) {
        /* At p begins a member of an object, an element of an array or, first of all, the value itself. */
        if (objects & 1) {
            p = wm_json_string(json, json_space(json, p), scratch, &length);
            if (!p || !(p = json_token(json, p, ':'))) return NULL;
        }
        p = json_space(json, p);
        if (json_at(json, p, '{') || json_at(json, p, '[')) {
            if (depth++ == WM_JSON_DEPTH) return json_fail(json, WM_FAULT_JSON_METADATA, p);
            objects = objects << 1 | (*p == '{');
            p = json_space(json, p + 1);
            if (!json_at(json, p, objects & 1 ? '}' : ']')) continue;
        } else if (!(p = skip_scalar(json, p, scratch))) {
            return NULL;
        }
        /* A value has ended; or an empty object or array ends next. */
        while (depth) {
            p = json_space(json, p);
            if (!json_at(json, p, objects & 1 ? '}' : ']')) break;
            p++;
            objects >>= 1;
            depth--;
        }
        if (!depth) return p;
        if (!(p = json_token(json, p, ','))) return NULL;
    }
}

uint64_t wm_json_depth(const uint8_t *text, uint64_t len) {
    const uint8_t *p = text, *end = text + len;
    uint64_t depth = 0, deepest = 0;
    for (; p < end; p++) {
        if (*p == '"') { /* on to the closing quote; a backslash escapes the next byte */
            for (p++; p < end && *p != '"'; p++) {
                if (*p == '\\' && ++p == end) return deepest;
            }
            if (p == end) return deepest;
        } else if (*p == '[' || *p == '{') {
            if (++depth > deepest) deepest = depth;
        } else if ((*p == ']' || *p == '}') && depth) {
            depth--;
        }
    }
    return deepest;
}
