/* kvwire._encode_ext: writes a batch in one dialect, straight into bytes.
 *
 * It writes what it is certain of: exact instances of the classes it was given, holding exact built-in types. For
 * everything else (a field that would be lost, a subclass, an int beyond 64 bits, a lone surrogate) it calls the
 * fallback, the pure path, whose bytes or error count. Between the first and the last byte no Python code can run, so
 * no list changes under its hands.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "structmember.h"
#if PY_VERSION_HEX < 0x030B0000
#include "longintrepr.h"
#endif

#include <math.h>
#include <stdint.h>
#include <string.h>

/* What kvwire/_encode.py expects; changed together with it, so that a file of an older build is not used. */
#define API 1

#define OK 0
#define UNSURE (-1)

/* Deeper than any value of this wire; the pure path says what is wrong with more. */
#define MAX_DEPTH 16

static const char SALT_PREFIX[] = "dynamo-cache-salt:";
#define SALT_PREFIX_LEN ((Py_ssize_t)sizeof(SALT_PREFIX) - 1)

/* {"cache_salt": ...}, without the value */
static const char METADATA_HEAD[] = "\x81\xaa" "cache_salt";
#define METADATA_HEAD_LEN ((Py_ssize_t)sizeof(METADATA_HEAD) - 1)

/* ---- the bytes being written ---------------------------------------------------------------------------------- */

/* Most messages fit `small`, which saves them the growing and shrinking of a bytes object. */
typedef struct {
    char *start, *cur, *end;
    PyObject *bytes; /* owner of start..end, or NULL while that is `small` */
    Py_ssize_t hint; /* size to expect once `small` is outgrown */
    char small[2048];
} Out;

static void
out_init(Out *out, Py_ssize_t hint)
{
    out->start = out->cur = out->small;
    out->end = out->small + sizeof(out->small);
    out->bytes = NULL;
    out->hint = hint;
}

static int
out_grow(Out *out, Py_ssize_t need)
{
    Py_ssize_t used = out->cur - out->start;
    if (need > PY_SSIZE_T_MAX / 4 - used) {
        return UNSURE;
    }
    Py_ssize_t size = 2 * (used + need);
    if (out->bytes == NULL) {
        size = size < out->hint ? out->hint : size;
        out->bytes = PyBytes_FromStringAndSize(NULL, size);
        if (out->bytes != NULL) {
            memcpy(PyBytes_AS_STRING(out->bytes), out->start, (size_t)used);
        }
    }
    else {
        _PyBytes_Resize(&out->bytes, size); /* leaves NULL behind when it fails */
    }
    if (out->bytes == NULL) {
        return UNSURE;
    }
    out->start = PyBytes_AS_STRING(out->bytes);
    out->cur = out->start + used;
    out->end = out->start + size;
    return OK;
}

static inline int
out_room(Out *out, Py_ssize_t need)
{
    return out->end - out->cur >= need ? OK : out_grow(out, need);
}

static PyObject *
out_finish(Out *out)
{
    Py_ssize_t used = out->cur - out->start;
    if (out->bytes == NULL) {
        return PyBytes_FromStringAndSize(out->start, used);
    }
    _PyBytes_Resize(&out->bytes, used);
    return out->bytes;
}

static inline void
put_16(char *at, uint16_t value)
{
    at[0] = (char)(value >> 8);
    at[1] = (char)value;
}

static inline void
put_32(char *at, uint32_t value)
{
    at[0] = (char)(value >> 24);
    at[1] = (char)(value >> 16);
    at[2] = (char)(value >> 8);
    at[3] = (char)value;
}

static inline void
put_64(char *at, uint64_t value)
{
    put_32(at, (uint32_t)(value >> 32));
    put_32(at + 4, (uint32_t)value);
}

static inline int
write_raw(Out *out, const char *data, Py_ssize_t size)
{
    if (out_room(out, size) != OK) {
        return UNSURE;
    }
    memcpy(out->cur, data, (size_t)size);
    out->cur += size;
    return OK;
}

static inline int
write_byte(Out *out, uint8_t value)
{
    if (out_room(out, 1) != OK) {
        return UNSURE;
    }
    *out->cur++ = (char)value;
    return OK;
}

/* ---- scalars -------------------------------------------------------------------------------------------------- */

/* The put_ functions write where they are told, where there must be room for 9 bytes, and return the place after. */
static inline char *
put_unsigned(char *at, uint64_t value)
{
    if (value < 0x80) {
        at[0] = (char)value;
        return at + 1;
    }
    if (value < 0x100) {
        at[0] = '\xcc';
        at[1] = (char)value;
        return at + 2;
    }
    if (value <= 0xFFFFFFFF) {
        /* Token ids lie on both sides of 65536 at random: a branch on it would be mispredicted half of the time. */
        unsigned wide = value > 0xFFFF;
        at[0] = (char)(0xCD + wide);
        put_32(at + 1, (uint32_t)(value << (wide ? 0 : 16)));
        return at + 3 + 2 * wide;
    }
    at[0] = '\xcf';
    put_64(at + 1, value);
    return at + 9;
}

static char *
put_negative(char *at, int64_t value)
{
    if (value >= -32) {
        at[0] = (char)value;
        return at + 1;
    }
    if (value >= INT8_MIN) {
        at[0] = '\xd0';
        at[1] = (char)value;
        return at + 2;
    }
    if (value >= INT16_MIN) {
        at[0] = '\xd1';
        put_16(at + 1, (uint16_t)value);
        return at + 3;
    }
    if (value >= INT32_MIN) {
        at[0] = '\xd2';
        put_32(at + 1, (uint32_t)value);
        return at + 5;
    }
    at[0] = '\xd3';
    put_64(at + 1, (uint64_t)value);
    return at + 9;
}

/* Any int; NULL when it has more than 64 bits. */
static char *
put_any_int(char *at, PyObject *number)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (!overflow) {
        return value < 0 ? put_negative(at, value) : put_unsigned(at, (uint64_t)value);
    }
    if (overflow < 0) {
        return NULL;
    }
    unsigned long long large = PyLong_AsUnsignedLongLong(number);
    return large == (unsigned long long)-1 && PyErr_Occurred() ? NULL : put_unsigned(at, large);
}

/* How CPython holds an int: a sign and digits of 30 bits. Newer ones than were tried go through the API alone. */
#if PY_VERSION_HEX >= 0x030E0000 || PYLONG_BITS_IN_DIGIT != 30
#define DIGITS_KNOWN 0
#define digit_count(number) (-1)
#define is_negative(number) 0
#define digit_at(number, i) 0
#elif PY_VERSION_HEX >= 0x030C0000
#define DIGITS_KNOWN 1
#define digit_count(number) ((Py_ssize_t)(((PyLongObject *)(number))->long_value.lv_tag >> 3))
#define is_negative(number) ((((PyLongObject *)(number))->long_value.lv_tag & 3) == 2)
#define digit_at(number, i) ((uint64_t)((PyLongObject *)(number))->long_value.ob_digit[i])
#else
#define DIGITS_KNOWN 1
#define digit_count(number) (Py_SIZE(number) < 0 ? -Py_SIZE(number) : Py_SIZE(number))
#define is_negative(number) (Py_SIZE(number) < 0)
#define digit_at(number, i) ((uint64_t)((PyLongObject *)(number))->ob_digit[i])
#endif

/* A block hash has three digits. */
static char *
put_three_digits(char *at, PyObject *number)
{
    uint64_t top = digit_at(number, 2);
    uint64_t value = digit_at(number, 0) | digit_at(number, 1) << 30 | top << 60;
    if (top >= 16) {
        return NULL;
    }
    if (!is_negative(number)) {
        return put_unsigned(at, value);
    }
    return value <= (uint64_t)1 << 63 ? put_negative(at, (int64_t)(0 - value)) : NULL;
}

static inline char *
put_int(char *at, PyObject *number)
{
    if (DIGITS_KNOWN && digit_count(number) == 1 && !is_negative(number)) {
        return put_unsigned(at, digit_at(number, 0));
    }
    if (DIGITS_KNOWN && digit_count(number) == 3) {
        return put_three_digits(at, number);
    }
    return put_any_int(at, number);
}

static int
write_int(Out *out, PyObject *number)
{
    if (out_room(out, 9) != OK) {
        return UNSURE;
    }
    char *after = put_int(out->cur, number);
    if (after == NULL) {
        return UNSURE;
    }
    out->cur = after;
    return OK;
}

static int
write_double(Out *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (out_room(out, 9) != OK) {
        return UNSURE;
    }
    *out->cur = '\xcb';
    put_64(out->cur + 1, bits);
    out->cur += 9;
    return OK;
}

static int
write_str_header(Out *out, Py_ssize_t size)
{
    if (size > UINT32_MAX || out_room(out, 5) != OK) {
        return UNSURE;
    }
    char *at = out->cur;
    if (size < 32) {
        at[0] = (char)(0xA0 | size);
        out->cur = at + 1;
    }
    else if (size < 0x100) {
        at[0] = '\xd9';
        at[1] = (char)size;
        out->cur = at + 2;
    }
    else if (size < 0x10000) {
        at[0] = '\xda';
        put_16(at + 1, (uint16_t)size);
        out->cur = at + 3;
    }
    else {
        at[0] = '\xdb';
        put_32(at + 1, (uint32_t)size);
        out->cur = at + 5;
    }
    return OK;
}

static const char *
utf8_of(PyObject *text, Py_ssize_t *size)
{
    if (PyUnicode_IS_COMPACT_ASCII(text)) {
        *size = PyUnicode_GET_LENGTH(text);
        return (const char *)PyUnicode_1BYTE_DATA(text);
    }
    return PyUnicode_AsUTF8AndSize(text, size);
}

static int
write_str(Out *out, PyObject *text)
{
    Py_ssize_t size;
    const char *data = utf8_of(text, &size);
    return data != NULL && write_str_header(out, size) == OK ? write_raw(out, data, size) : UNSURE;
}

static int
write_bytes(Out *out, PyObject *value)
{
    Py_ssize_t size = PyBytes_GET_SIZE(value);
    if (size > UINT32_MAX || out_room(out, 5) != OK) {
        return UNSURE;
    }
    char *at = out->cur;
    if (size < 0x100) {
        at[0] = '\xc4';
        at[1] = (char)size;
        out->cur = at + 2;
    }
    else if (size < 0x10000) {
        at[0] = '\xc5';
        put_16(at + 1, (uint16_t)size);
        out->cur = at + 3;
    }
    else {
        at[0] = '\xc6';
        put_32(at + 1, (uint32_t)size);
        out->cur = at + 5;
    }
    return write_raw(out, PyBytes_AS_STRING(value), size);
}

/* ---- values --------------------------------------------------------------------------------------------------- */

static int write_value(Out *out, PyObject *value, int depth);

static int
write_array_header(Out *out, Py_ssize_t count)
{
    if (count > UINT32_MAX || out_room(out, 5) != OK) {
        return UNSURE;
    }
    char *at = out->cur;
    if (count < 16) {
        at[0] = (char)(0x90 | count);
        out->cur = at + 1;
    }
    else if (count < 0x10000) {
        at[0] = '\xdc';
        put_16(at + 1, (uint16_t)count);
        out->cur = at + 3;
    }
    else {
        at[0] = '\xdd';
        put_32(at + 1, (uint32_t)count);
        out->cur = at + 5;
    }
    return OK;
}

static inline int
is_sequence(PyObject *value)
{
    return PyList_CheckExact(value) || PyTuple_CheckExact(value);
}

/* Ints from the front of `items`, as many as there are and as there is room for: token ids, the bulk of every message.
 * Returns how many, or UNSURE. */
static Py_ssize_t
write_ints(Out *out, PyObject **items, Py_ssize_t count)
{
    char *at = out->cur, *last = out->end - 9;
    Py_ssize_t i = 0;
    for (; i < count && at <= last && PyLong_CheckExact(items[i]); i++) {
        at = put_int(at, items[i]);
        if (at == NULL) {
            return UNSURE;
        }
    }
    out->cur = at;
    return i;
}

static int
write_items(Out *out, PyObject **items, Py_ssize_t count, int depth)
{
    for (Py_ssize_t i = 0; i < count;) {
        Py_ssize_t ints = write_ints(out, items + i, count - i);
        if (ints < 0) {
            return UNSURE;
        }
        i += ints;
        /* Not an int, or the one that there was no room for. */
        if (i < count && write_value(out, items[i++], depth) != OK) {
            return UNSURE;
        }
    }
    return OK;
}

static int
write_sequence(Out *out, PyObject *value, int depth)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    if (depth >= MAX_DEPTH || write_array_header(out, count) != OK) {
        return UNSURE;
    }
    return write_items(out, PySequence_Fast_ITEMS(value), count, depth + 1);
}

static int
write_value(Out *out, PyObject *value, int depth)
{
    if (value == Py_None) {
        return write_byte(out, 0xC0);
    }
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type) {
        return write_int(out, value);
    }
    if (type == &PyList_Type || type == &PyTuple_Type) {
        return write_sequence(out, value, depth);
    }
    if (type == &PyUnicode_Type) {
        return write_str(out, value);
    }
    if (type == &PyBytes_Type) {
        return write_bytes(out, value);
    }
    if (type == &PyFloat_Type) {
        return write_double(out, PyFloat_AS_DOUBLE(value));
    }
    if (type == &PyBool_Type) {
        return write_byte(out, value == Py_True ? 0xC3 : 0xC2);
    }
    return UNSURE;
}

/* ---- reading what was written --------------------------------------------------------------------------------- */

typedef const unsigned char *At;

static inline uint32_t
get_be(At at, int width)
{
    uint32_t value = 0;
    while (width--) {
        value = value << 8 | *at++;
    }
    return value;
}

/* Past the header of an array that has the shortest form, with the count in `count`; NULL when it is anything else. */
static At
array_header(At at, At end, uint32_t *count)
{
    if (end - at >= 1 && at[0] >= 0x90 && at[0] < 0xA0) {
        *count = at[0] & 0x0F;
        return at + 1;
    }
    if (end - at >= 3 && at[0] == 0xDC) {
        *count = get_be(at + 1, 2);
        return *count < 16 ? NULL : at + 3;
    }
    if (end - at >= 5 && at[0] == 0xDD) {
        *count = get_be(at + 1, 4);
        return *count < 0x10000 ? NULL : at + 5;
    }
    return NULL;
}

/* Width of an int of up to 32 bits, not negative, in its shortest form; 0 when it is anything else or cut short. */
static inline Py_ssize_t
token_width(At at, At end)
{
    if (end - at >= 5 && (at[0] == 0xCD || at[0] == 0xCE)) {
        /* One way for both widths, as in put_unsigned. */
        Py_ssize_t wide = at[0] == 0xCE;
        return at[1] | (wide & (at[2] != 0)) ? 3 + 2 * wide : 0;
    }
    if (at >= end) {
        return 0;
    }
    if (at[0] < 0x80) {
        return 1;
    }
    if (at[0] == 0xCD) {
        return end - at >= 3 && at[1] ? 3 : 0;
    }
    return at[0] == 0xCC && end - at >= 2 && at[1] >= 0x80 ? 2 : 0;
}

/* Width of an array of two such ints, as EAGLE pages have; 0 when it is anything else. */
static Py_ssize_t
pair_width(At at, At end)
{
    if (at >= end || at[0] != 0x92) {
        return 0;
    }
    Py_ssize_t one = token_width(at + 1, end);
    Py_ssize_t two = one ? token_width(at + 1 + one, end) : 0;
    return two ? 1 + one + two : 0;
}

/* Whether bytes are one array of token ids, each in its shortest form: what decoding and encoding would give. */
static int
is_minimal_tokens(At at, Py_ssize_t size)
{
    At end = at + size;
    uint32_t count;
    at = array_header(at, end, &count);
    if (at == NULL) {
        return 0;
    }
    while (count--) {
        Py_ssize_t width = token_width(at, end);
        width = width ? width : pair_width(at, end);
        if (!width) {
            return 0;
        }
        at += width;
    }
    return at == end;
}

/* ---- plans ---------------------------------------------------------------------------------------------------- */

enum { PLAIN, EXTRA_KEYS, TOKENS, METADATA, SALT };

typedef struct {
    Py_ssize_t offset; /* of the member in the instance */
    int role;
    int omit; /* a map leaves the key out at nil */
    const char *key;
    Py_ssize_t key_size;
} Field;

/* How the instances of one class are written. */
typedef struct {
    PyTypeObject *type;
    PyObject *spec; /* the tuple it was made from, which owns `head` and every key */
    const char *head; /* header and tag */
    Py_ssize_t head_size;
    int is_map;
    int salted;         /* a neutral event with a salt needs care */
    int has_metadata;   /* the salt rides in a metadata map that ends the event */
    int prefixes;       /* the salt rides in the extra keys of the first block */
    int salted_fields;  /* the dialect has a place of its own for the salt */
    Py_ssize_t salt_at, extra_keys_at, hashes_at;
    Py_ssize_t field_count, lost_count;
    Field *fields;
    Field *lost; /* what the dialect cannot carry */
} Plan;

typedef struct {
    PyTypeObject *type;
    Py_ssize_t ts_at, events_at, rank_at;
} BatchPlan;

typedef struct {
    PyObject_HEAD
    PyObject *fallback;
    PyTypeObject *raw_type;
    PyTypeObject *metadata_type;
    Py_ssize_t metadata_salt_at;
    int has_rank;
    int drop;
    Py_ssize_t hint;
    Py_ssize_t plan_count, batch_count;
    Plan *plans;
    BatchPlan *batches;
} Encoder;

static inline PyObject *
member(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

/* ---- salts ---------------------------------------------------------------------------------------------------- */

/* Whether a value is exactly the str "dynamo-cache-salt:" + salt. */
static int
is_prefixed(PyObject *value, const char *salt, Py_ssize_t salt_size)
{
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(value)) {
        return 0;
    }
    const char *data = utf8_of(value, &size);
    if (data == NULL) {
        return UNSURE;
    }
    return size == SALT_PREFIX_LEN + salt_size && memcmp(data, SALT_PREFIX, (size_t)SALT_PREFIX_LEN) == 0
           && memcmp(data + SALT_PREFIX_LEN, salt, (size_t)salt_size) == 0;
}

/* Whether the extra keys hold the salt already; UNSURE when they are not lists of lists. */
static int
holds_salt(PyObject *extra_keys, const char *salt, Py_ssize_t salt_size)
{
    int found = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(extra_keys); i++) {
        PyObject *entry = PySequence_Fast_GET_ITEM(extra_keys, i);
        if (entry == Py_None) {
            continue;
        }
        if (!is_sequence(entry)) {
            return UNSURE;
        }
        for (Py_ssize_t j = 0; j < PySequence_Fast_GET_SIZE(entry); j++) {
            int same = is_prefixed(PySequence_Fast_GET_ITEM(entry, j), salt, salt_size);
            if (same < 0) {
                return UNSURE;
            }
            found |= same;
        }
    }
    return found;
}

/* The keys of the first block: what it has (None or a sequence), and the salt. */
static int
write_salted_entry(Out *out, PyObject *entry, const char *salt, Py_ssize_t salt_size)
{
    Py_ssize_t count = entry == Py_None ? 0 : PySequence_Fast_GET_SIZE(entry);
    if (write_array_header(out, count + 1) != OK) {
        return UNSURE;
    }
    if (count && write_items(out, PySequence_Fast_ITEMS(entry), count, 2) != OK) {
        return UNSURE;
    }
    if (write_str_header(out, SALT_PREFIX_LEN + salt_size) != OK
        || write_raw(out, SALT_PREFIX, SALT_PREFIX_LEN) != OK) {
        return UNSURE;
    }
    return write_raw(out, salt, salt_size);
}

/* Extra keys where there were none: one entry per block hash, or the first alone before a metadata map. */
static int
write_new_extra_keys(Out *out, const Plan *plan, PyObject *event, const char *salt, Py_ssize_t salt_size)
{
    Py_ssize_t count = 1;
    if (!plan->has_metadata) {
        PyObject *hashes = member(event, plan->hashes_at);
        if (hashes == NULL || !is_sequence(hashes)) {
            return UNSURE;
        }
        count = PySequence_Fast_GET_SIZE(hashes) > 1 ? PySequence_Fast_GET_SIZE(hashes) : 1;
    }
    if (write_array_header(out, count) != OK || write_salted_entry(out, Py_None, salt, salt_size) != OK) {
        return UNSURE;
    }
    if (out_room(out, count - 1) != OK) {
        return UNSURE;
    }
    memset(out->cur, 0xC0, (size_t)(count - 1));
    out->cur += count - 1;
    return OK;
}

static int
write_salted_extra_keys(Out *out, const Plan *plan, PyObject *event, PyObject *salt_text)
{
    Py_ssize_t salt_size;
    const char *salt = utf8_of(salt_text, &salt_size);
    PyObject *extra_keys = member(event, plan->extra_keys_at);
    if (salt == NULL || extra_keys == NULL || (extra_keys != Py_None && !is_sequence(extra_keys))) {
        return UNSURE;
    }
    if (extra_keys == Py_None || PySequence_Fast_GET_SIZE(extra_keys) == 0) {
        return write_new_extra_keys(out, plan, event, salt, salt_size);
    }
    int held = holds_salt(extra_keys, salt, salt_size);
    if (held != 0) {
        return held < 0 ? UNSURE : write_sequence(out, extra_keys, 0);
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(extra_keys);
    PyObject **entries = PySequence_Fast_ITEMS(extra_keys);
    if (write_array_header(out, count) != OK || write_salted_entry(out, entries[0], salt, salt_size) != OK) {
        return UNSURE;
    }
    return write_items(out, entries + 1, count - 1, 1);
}

/* ---- events --------------------------------------------------------------------------------------------------- */

/* Whether extra keys that the dialect cannot carry hold nothing but the salt, which it carries elsewhere. */
static int
only_salt(PyObject *extra_keys, PyObject *salt_text)
{
    Py_ssize_t salt_size;
    if (salt_text == NULL || !PyUnicode_CheckExact(salt_text) || PyUnicode_GET_LENGTH(salt_text) == 0) {
        return 0;
    }
    const char *salt = utf8_of(salt_text, &salt_size);
    if (salt == NULL || !PyList_CheckExact(extra_keys) || PyList_GET_SIZE(extra_keys) == 0) {
        return 0;
    }
    PyObject *first = PyList_GET_ITEM(extra_keys, 0);
    if (!PyList_CheckExact(first) || PyList_GET_SIZE(first) != 1
        || is_prefixed(PyList_GET_ITEM(first, 0), salt, salt_size) != 1) {
        return 0;
    }
    for (Py_ssize_t i = 1; i < PyList_GET_SIZE(extra_keys); i++) {
        if (PyList_GET_ITEM(extra_keys, i) != Py_None) {
            return 0;
        }
    }
    return 1;
}

static int
check_loss(const Plan *plan, PyObject *event)
{
    for (Py_ssize_t i = 0; i < plan->lost_count; i++) {
        const Field *field = &plan->lost[i];
        PyObject *value = member(event, field->offset);
        if (value == Py_None) {
            continue;
        }
        if (value == NULL) {
            return UNSURE;
        }
        if (field->role == SALT && PyUnicode_CheckExact(value)
            && (plan->prefixes || PyUnicode_GET_LENGTH(value) == 0)) {
            continue;
        }
        if (field->role == EXTRA_KEYS && plan->salted_fields && only_salt(value, member(event, plan->salt_at))) {
            continue;
        }
        return UNSURE;
    }
    return OK;
}

static int
write_metadata(Out *out, PyObject *salt)
{
    if (write_raw(out, METADATA_HEAD, METADATA_HEAD_LEN) != OK) {
        return UNSURE;
    }
    return write_str(out, salt);
}

/* The metadata struct of a dialect's own event, or nil. */
static int
write_own_metadata(const Encoder *self, Out *out, PyObject *value)
{
    if (value == Py_None) {
        return write_byte(out, 0xC0);
    }
    if (Py_TYPE(value) != self->metadata_type) {
        return UNSURE;
    }
    PyObject *salt = member(value, self->metadata_salt_at);
    return salt != NULL && PyUnicode_CheckExact(salt) ? write_metadata(out, salt) : UNSURE;
}

/* Tokens that `skip_tokens` left as bytes are copied when they are known to be what encoding them would give. */
static int
write_tokens(const Encoder *self, Out *out, PyObject *value)
{
    if (is_sequence(value)) {
        return write_sequence(out, value, 0);
    }
    if (Py_TYPE(value) != self->raw_type) {
        return UNSURE; /* a class that keeps tokens for later may keep them as anything */
    }
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) != 0) {
        return UNSURE;
    }
    int done = is_minimal_tokens(view.buf, view.len) ? write_raw(out, view.buf, view.len) : UNSURE;
    PyBuffer_Release(&view);
    return done;
}

static int
write_field(const Encoder *self, Out *out, const Plan *plan, const Field *field, PyObject *event, PyObject *salt)
{
    PyObject *value = member(event, field->offset);
    if (value == NULL) {
        return UNSURE;
    }
    switch (field->role) {
    case EXTRA_KEYS:
        return salt == NULL ? write_value(out, value, 0) : write_salted_extra_keys(out, plan, event, salt);
    case TOKENS:
        return write_tokens(self, out, value);
    case METADATA:
        return write_own_metadata(self, out, value);
    default:
        return write_value(out, value, 0);
    }
}

/* Whether a map leaves the field out. Extra keys that a salt goes into are not nil, whatever the event has. */
static int
is_omitted(const Field *field, PyObject *event, PyObject *salt)
{
    return field->omit && member(event, field->offset) == Py_None && !(field->role == EXTRA_KEYS && salt != NULL);
}

static int
write_map_event(const Encoder *self, Out *out, const Plan *plan, PyObject *event, PyObject *salt)
{
    Py_ssize_t header = out->cur - out->start;
    unsigned count = 1;
    if (write_raw(out, plan->head, plan->head_size) != OK) {
        return UNSURE;
    }
    for (Py_ssize_t i = 0; i < plan->field_count; i++) {
        const Field *field = &plan->fields[i];
        if (is_omitted(field, event, salt)) {
            continue;
        }
        if (write_raw(out, field->key, field->key_size) != OK
            || write_field(self, out, plan, field, event, salt) != OK) {
            return UNSURE;
        }
        count++;
    }
    /* msgspec reserves the header that all keys would need, and fills in the count afterwards. */
    char *at = out->start + header;
    if (at[0] == '\xde') {
        put_16(at + 1, (uint16_t)count);
    }
    else {
        at[0] = (char)(0x80 | count);
    }
    return OK;
}

static int
write_array_event(const Encoder *self, Out *out, const Plan *plan, PyObject *event, PyObject *salt, PyObject *metadata)
{
    Py_ssize_t header = out->cur - out->start;
    if (write_raw(out, plan->head, plan->head_size) != OK) {
        return UNSURE;
    }
    for (Py_ssize_t i = 0; i < plan->field_count; i++) {
        if (write_field(self, out, plan, &plan->fields[i], event, salt) != OK) {
            return UNSURE;
        }
    }
    if (metadata == NULL) {
        return OK;
    }
    out->start[header]++; /* one more slot; a plan with metadata has 14 at most */
    return write_metadata(out, metadata);
}

static int
write_event(const Encoder *self, Out *out, const Plan *plan, PyObject *event)
{
    PyObject *prefixed = NULL, *metadata = NULL;
    if (plan->salted) {
        PyObject *salt = member(event, plan->salt_at);
        if (salt == NULL || (salt != Py_None && !PyUnicode_CheckExact(salt))) {
            return UNSURE;
        }
        if (salt != Py_None) {
            prefixed = plan->prefixes && PyUnicode_GET_LENGTH(salt) ? salt : NULL;
            metadata = plan->has_metadata ? salt : NULL;
        }
    }
    if (!self->drop && check_loss(plan, event) != OK) {
        return UNSURE;
    }
    return plan->is_map ? write_map_event(self, out, plan, event, prefixed)
                        : write_array_event(self, out, plan, event, prefixed, metadata);
}

static const Plan *
plan_of(const Encoder *self, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < self->plan_count; i++) {
        if (self->plans[i].type == type) {
            return &self->plans[i];
        }
    }
    return NULL;
}

static int
write_events(const Encoder *self, Out *out, PyObject *events)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(events);
    const Plan *plan = NULL;
    if (write_array_header(out, count) != OK) {
        return UNSURE;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *event = PySequence_Fast_GET_ITEM(events, i);
        if (plan == NULL || plan->type != Py_TYPE(event)) {
            plan = plan_of(self, Py_TYPE(event));
        }
        if (plan == NULL || write_event(self, out, plan, event) != OK) {
            return UNSURE;
        }
    }
    return OK;
}

static int
write_batch(const Encoder *self, Out *out, PyObject *batch)
{
    const BatchPlan *plan = self->batches, *end = plan + self->batch_count;
    while (plan < end && plan->type != Py_TYPE(batch)) {
        plan++;
    }
    if (plan == end) {
        return UNSURE;
    }
    PyObject *ts = member(batch, plan->ts_at);
    PyObject *events = member(batch, plan->events_at);
    PyObject *rank = member(batch, plan->rank_at);
    if (ts == NULL || !PyFloat_CheckExact(ts) || !isfinite(PyFloat_AS_DOUBLE(ts)) || events == NULL
        || !is_sequence(events) || rank == NULL || (!self->has_rank && !self->drop && rank != Py_None)) {
        return UNSURE;
    }
    if (write_byte(out, self->has_rank ? 0x93 : 0x92) != OK || write_double(out, PyFloat_AS_DOUBLE(ts)) != OK
        || write_events(self, out, events) != OK) {
        return UNSURE;
    }
    return self->has_rank ? write_value(out, rank, 0) : OK;
}

/* ---- the encoder object --------------------------------------------------------------------------------------- */

static PyObject *
call_fallback(const Encoder *self, PyObject *batch)
{
    PyObject *fallback = self->fallback; /* NULL once the collector has cleared it */
    if (fallback == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the encoder is gone");
        return NULL;
    }
    Py_INCREF(fallback);
    PyObject *result = PyObject_CallOneArg(fallback, batch);
    Py_DECREF(fallback);
    return result;
}

/* The bytes of a batch, or NULL without an error when in doubt. */
static PyObject *
encode_surely(Encoder *self, PyObject *batch)
{
    Out out;
    out_init(&out, self->hint);
    if (write_batch(self, &out, batch) != OK) {
        Py_XDECREF(out.bytes);
        PyErr_Clear();
        return NULL;
    }
    PyObject *payload = out_finish(&out);
    if (payload != NULL) {
        self->hint = PyBytes_GET_SIZE(payload) + PyBytes_GET_SIZE(payload) / 16;
    }
    return payload;
}

static PyObject *
encoder_encode(PyObject *object, PyObject *batch)
{
    PyObject *payload = encode_surely((Encoder *)object, batch);
    return payload != NULL || PyErr_Occurred() ? payload : call_fallback((Encoder *)object, batch);
}

static PyObject *
encoder_attempt(PyObject *object, PyObject *batch)
{
    PyObject *payload = encode_surely((Encoder *)object, batch);
    if (payload == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return payload;
}

/* The offset of a slot that instances of `type` have, or -1 with an error: what makes `member` safe. */
static Py_ssize_t
offset_of(PyTypeObject *type, PyObject *descriptor)
{
    if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
        PyMemberDescrObject *found = (PyMemberDescrObject *)descriptor;
        Py_ssize_t offset = found->d_member->offset;
        if (found->d_member->type == T_OBJECT_EX && PyType_IsSubtype(type, PyDescr_TYPE(descriptor))
            && offset >= (Py_ssize_t)sizeof(PyObject)
            && offset + (Py_ssize_t)sizeof(PyObject *) <= type->tp_basicsize) {
            return offset;
        }
    }
    PyErr_Format(PyExc_TypeError, "%.200s has no such slot", type->tp_name);
    return -1;
}

static int
fill_fields(Field **into, Py_ssize_t *count, PyTypeObject *type, PyObject *specs)
{
    Py_ssize_t wanted = PyTuple_GET_SIZE(specs);
    *into = PyMem_Calloc((size_t)wanted + 1, sizeof(Field));
    if (*into == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < wanted; i++) {
        Field *field = &(*into)[i];
        PyObject *descriptor, *key;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(specs, i), "OiO!p", &descriptor, &field->role, &PyBytes_Type, &key,
                              &field->omit)) {
            return -1;
        }
        field->offset = offset_of(type, descriptor);
        if (field->offset < 0) {
            return -1;
        }
        field->key = PyBytes_AS_STRING(key);
        field->key_size = PyBytes_GET_SIZE(key);
        (*count)++;
    }
    return 0;
}

static int
fill_salt(Plan *plan, PyObject *salt)
{
    PyObject *salt_slot, *extra_keys, *hashes;
    if (salt == Py_None) {
        return 0;
    }
    if (!PyArg_ParseTuple(salt, "OOOppp", &salt_slot, &extra_keys, &hashes, &plan->has_metadata, &plan->prefixes,
                          &plan->salted_fields)) {
        return -1;
    }
    plan->salted = 1;
    plan->salt_at = offset_of(plan->type, salt_slot);
    plan->extra_keys_at = offset_of(plan->type, extra_keys);
    plan->hashes_at = offset_of(plan->type, hashes);
    return plan->salt_at < 0 || plan->extra_keys_at < 0 || plan->hashes_at < 0 ? -1 : 0;
}

static int
fill_plan(Plan *plan, PyObject *spec)
{
    PyObject *type, *head, *fields, *lost, *salt;
    if (!PyArg_ParseTuple(spec, "O!O!pO!O!O", &PyType_Type, &type, &PyBytes_Type, &head, &plan->is_map, &PyTuple_Type,
                          &fields, &PyTuple_Type, &lost, &salt)) {
        return -1;
    }
    Py_INCREF(spec);
    plan->spec = spec;
    plan->type = (PyTypeObject *)type; /* kept alive by the spec */
    plan->head = PyBytes_AS_STRING(head);
    plan->head_size = PyBytes_GET_SIZE(head);
    if (fill_fields(&plan->fields, &plan->field_count, plan->type, fields) != 0
        || fill_fields(&plan->lost, &plan->lost_count, plan->type, lost) != 0) {
        return -1;
    }
    return fill_salt(plan, salt);
}

static int
encoder_traverse(PyObject *object, visitproc visit, void *arg)
{
    Encoder *self = (Encoder *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->fallback);
    Py_VISIT(self->raw_type);
    Py_VISIT(self->metadata_type);
    for (Py_ssize_t i = 0; i < self->plan_count; i++) {
        Py_VISIT(self->plans[i].spec);
    }
    for (Py_ssize_t i = 0; i < self->batch_count; i++) {
        Py_VISIT(self->batches[i].type);
    }
    return 0;
}

static int
encoder_clear(PyObject *object)
{
    Encoder *self = (Encoder *)object;
    Py_CLEAR(self->fallback);
    return 0;
}

static void
encoder_dealloc(PyObject *object)
{
    Encoder *self = (Encoder *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->fallback);
    Py_CLEAR(self->raw_type);
    Py_CLEAR(self->metadata_type);
    for (Py_ssize_t i = 0; i < self->plan_count; i++) {
        PyMem_Free(self->plans[i].fields);
        PyMem_Free(self->plans[i].lost);
        Py_CLEAR(self->plans[i].spec);
    }
    for (Py_ssize_t i = 0; i < self->batch_count; i++) {
        Py_CLEAR(self->batches[i].type);
    }
    PyMem_Free(self->plans);
    PyMem_Free(self->batches);
    type->tp_free(object);
    Py_DECREF(type);
}

static int
fill_plans(Encoder *self, PyObject *specs)
{
    self->plans = PyMem_Calloc((size_t)PyTuple_GET_SIZE(specs) + 1, sizeof(Plan));
    if (self->plans == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(specs); i++) {
        self->plan_count++;
        if (fill_plan(&self->plans[i], PyTuple_GET_ITEM(specs, i)) != 0) {
            return -1;
        }
    }
    return 0;
}

static int
fill_batches(Encoder *self, PyObject *specs)
{
    self->batches = PyMem_Calloc((size_t)PyTuple_GET_SIZE(specs) + 1, sizeof(BatchPlan));
    if (self->batches == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(specs); i++) {
        BatchPlan *batch = &self->batches[i];
        PyObject *type, *ts, *events, *rank;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(specs, i), "O!OOO", &PyType_Type, &type, &ts, &events, &rank)) {
            return -1;
        }
        Py_INCREF(type);
        batch->type = (PyTypeObject *)type;
        self->batch_count++;
        batch->ts_at = offset_of(batch->type, ts);
        batch->events_at = offset_of(batch->type, events);
        batch->rank_at = offset_of(batch->type, rank);
        if (batch->ts_at < 0 || batch->events_at < 0 || batch->rank_at < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
encoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *plans, *batches, *raw_type, *metadata_type, *metadata_salt, *fallback;
    int has_rank, drop;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Encoder takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!ppO!O!OO", &PyTuple_Type, &plans, &PyTuple_Type, &batches, &has_rank, &drop,
                          &PyType_Type, &raw_type, &PyType_Type, &metadata_type, &metadata_salt, &fallback)) {
        return NULL;
    }
    Encoder *self = (Encoder *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(raw_type);
    Py_INCREF(metadata_type);
    Py_INCREF(fallback);
    self->raw_type = (PyTypeObject *)raw_type;
    self->metadata_type = (PyTypeObject *)metadata_type;
    self->fallback = fallback;
    self->has_rank = has_rank;
    self->drop = drop;
    self->metadata_salt_at = offset_of(self->metadata_type, metadata_salt);
    if (self->metadata_salt_at < 0 || fill_plans(self, plans) != 0 || fill_batches(self, batches) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMethodDef encoder_methods[] = {
    {"encode", encoder_encode, METH_O, "The bytes of a batch; what the fallback returns or raises when in doubt."},
    {"attempt", encoder_attempt, METH_O, "The bytes of a batch, or None when in doubt."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, "Encoder(plans, batches, has_rank, drop, raw_type, metadata_type, metadata_salt, fallback)"},
    {Py_tp_new, encoder_new},
    {Py_tp_dealloc, encoder_dealloc},
    {Py_tp_traverse, encoder_traverse},
    {Py_tp_clear, encoder_clear},
    {Py_tp_methods, encoder_methods},
    {0, NULL},
};

static PyType_Spec encoder_spec = {
    .name = "kvwire._encode_ext.Encoder",
    .basicsize = sizeof(Encoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = encoder_slots,
};

/* ---- what no dialect knows ------------------------------------------------------------------------------------ */

#define MAX_KNOWN_KEYS 32

/* An event class as all dialects together know it. */
typedef struct {
    const char *tag; /* as a msgpack str */
    Py_ssize_t tag_size;
    uint32_t lengths;  /* bit n: an array of n slots holds nothing unknown */
    uint32_t metadata; /* bit n: slot n may be a metadata map */
    Py_ssize_t key_count;
    const char *keys[MAX_KNOWN_KEYS];
    Py_ssize_t key_sizes[MAX_KNOWN_KEYS];
} KnownEvent;

typedef struct {
    PyObject_HEAD
    PyObject *spec; /* owns the tags and keys */
    Py_ssize_t count;
    KnownEvent events[3];
} Known;

/* Width of a scalar's head and how many bytes follow it; 0 for what this wire does not have. */
static Py_ssize_t
scalar_width(At at, At end)
{
    static const unsigned char fixed[] = {
        /* c0 */ 1, 0, 1, 1, 2, 3, 5, 0, 0, 0, 5, 9, 2, 3, 5, 9,
        /* d0 */ 2, 3, 5, 9, 0, 0, 0, 0, 0, 2, 3, 5, 0, 0, 0, 0,
    };
    unsigned first = at[0];
    if (first < 0x80 || first >= 0xE0) {
        return 1;
    }
    if (first < 0xC0) {
        return first >= 0xA0 ? 1 + (first & 0x1F) : 0;
    }
    Py_ssize_t width = fixed[first - 0xC0];
    int sized = (first >= 0xC4 && first <= 0xC6) || (first >= 0xD9 && first <= 0xDB);
    if (sized && end - at >= width) {
        width += get_be(at + 1, (int)width - 1);
    }
    return width;
}

/* How many values an array or map holds; 0 and no width for anything else. */
static uint64_t
container(At at, At end, Py_ssize_t *width)
{
    unsigned first = at[0];
    *width = 1;
    if (first >= 0x80 && first < 0x90) {
        return 2 * (first & 0x0F);
    }
    if (first >= 0x90 && first < 0xA0) {
        return first & 0x0F;
    }
    *width = first == 0xDC || first == 0xDE ? 3 : first == 0xDD || first == 0xDF ? 5 : 0;
    if (!*width || end - at < *width) {
        *width = 0;
        return 0;
    }
    uint64_t count = get_be(at + 1, (int)*width - 1);
    return first >= 0xDE ? 2 * count : count;
}

/* Past one value; NULL when it is cut short or not of this wire. */
static At
skip(At at, At end)
{
    uint64_t left = 1;
    while (left) {
        if (left > (uint64_t)(end - at)) {
            return NULL; /* fewer bytes than values */
        }
        Py_ssize_t width = token_width(at, end);
        if (!width) {
            left += container(at, end, &width);
        }
        if (!width) {
            width = scalar_width(at, end);
        }
        if (!width || end - at < width) {
            return NULL;
        }
        at += width;
        left--;
    }
    return at;
}

static int
starts_with(At at, At end, const char *wanted, Py_ssize_t size)
{
    return end - at >= size && memcmp(at, wanted, (size_t)size) == 0;
}

static const KnownEvent *
known_event(const Known *self, At at, At end)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (starts_with(at, end, self->events[i].tag, self->events[i].tag_size)) {
            return &self->events[i];
        }
    }
    return NULL;
}

static int
is_map(unsigned first)
{
    return (first & 0xF0) == 0x80 || first == 0xDE || first == 0xDF;
}

static At
skip_metadata(At at, At end)
{
    if (!starts_with(at, end, METADATA_HEAD, METADATA_HEAD_LEN)) {
        return NULL;
    }
    return skip(at + METADATA_HEAD_LEN, end);
}

static At
skip_known_array(const Known *self, At at, At end)
{
    uint32_t count = at[0] & 0x0F;
    const KnownEvent *event = known_event(self, at + 1, end);
    if (event == NULL || !(event->lengths >> count & 1)) {
        return NULL;
    }
    at += 1 + event->tag_size;
    for (uint32_t slot = 1; slot < count && at != NULL; slot++) {
        int metadata = event->metadata >> slot & 1 && at < end && is_map(at[0]);
        at = metadata ? skip_metadata(at, end) : skip(at, end);
    }
    return at;
}

static At
skip_known_key(const KnownEvent *event, At at, At end, Py_ssize_t *likely)
{
    for (Py_ssize_t tried = 0; tried < event->key_count; tried++) {
        Py_ssize_t i = (*likely + tried) % event->key_count;
        if (starts_with(at, end, event->keys[i], event->key_sizes[i])) {
            *likely = i + 1;
            return at + event->key_sizes[i];
        }
    }
    return NULL;
}

/* A map whose first key is its type, as msgspec writes maps. */
static At
skip_known_map(const Known *self, At at, At end)
{
    static const char TYPE[] = "\xa4type";
    Py_ssize_t width;
    uint64_t count = container(at, end, &width) / 2;
    at += width;
    if (!width || !count || !starts_with(at, end, TYPE, sizeof(TYPE) - 1)) {
        return NULL;
    }
    at += sizeof(TYPE) - 1;
    const KnownEvent *event = known_event(self, at, end);
    if (event == NULL) {
        return NULL;
    }
    at += event->tag_size;
    Py_ssize_t likely = 0;
    while (--count && at != NULL) {
        at = skip_known_key(event, at, end, &likely);
        at = at == NULL ? NULL : skip(at, end);
    }
    return at;
}

static int
knows_all(const Known *self, At at, At end)
{
    uint32_t count;
    if (at >= end || (at[0] != 0x92 && at[0] != 0x93)) {
        return 0;
    }
    int has_rank = at[0] == 0x93;
    at = skip(at + 1, end);
    at = at == NULL ? NULL : array_header(at, end, &count);
    if (at == NULL) {
        return 0;
    }
    while (count--) {
        if (at == NULL || at >= end) {
            return 0;
        }
        at = (at[0] & 0xF0) == 0x90 ? skip_known_array(self, at, end)
             : is_map(at[0])        ? skip_known_map(self, at, end)
                                    : NULL;
    }
    if (at != NULL && has_rank) {
        at = skip(at, end);
    }
    return at == end;
}

static PyObject *
known_call(PyObject *object, PyObject *payload)
{
    if (!PyBytes_CheckExact(payload)) {
        PyErr_SetString(PyExc_TypeError, "a payload is bytes");
        return NULL;
    }
    At start = (At)PyBytes_AS_STRING(payload);
    return PyBool_FromLong(knows_all((const Known *)object, start, start + PyBytes_GET_SIZE(payload)));
}

static int
fill_known(KnownEvent *event, PyObject *spec)
{
    PyObject *keys;
    unsigned lengths, metadata;
    if (!PyArg_ParseTuple(spec, "y#IIO!", &event->tag, &event->tag_size, &lengths, &metadata, &PyTuple_Type, &keys)) {
        return -1;
    }
    event->lengths = lengths;
    event->metadata = metadata;
    if (PyTuple_GET_SIZE(keys) > MAX_KNOWN_KEYS) {
        PyErr_SetString(PyExc_ValueError, "too many keys");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (!PyBytes_CheckExact(key)) {
            PyErr_SetString(PyExc_TypeError, "a key is bytes");
            return -1;
        }
        event->keys[i] = PyBytes_AS_STRING(key);
        event->key_sizes[i] = PyBytes_GET_SIZE(key);
        event->key_count++;
    }
    return 0;
}

static void
known_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(((Known *)object)->spec);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *
known_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *specs;
    if ((kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0) || !PyArg_ParseTuple(args, "O!", &PyTuple_Type, &specs)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "Known takes no keyword arguments");
        }
        return NULL;
    }
    Known *self = (Known *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(specs);
    self->spec = specs;
    if (PyTuple_GET_SIZE(specs) > (Py_ssize_t)(sizeof(self->events) / sizeof(self->events[0]))) {
        PyErr_SetString(PyExc_ValueError, "too many tags");
        Py_DECREF(self);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(specs); i++) {
        if (fill_known(&self->events[i], PyTuple_GET_ITEM(specs, i)) != 0) {
            Py_DECREF(self);
            return NULL;
        }
        self->count++;
    }
    return (PyObject *)self;
}

static PyMethodDef known_methods[] = {
    {"all_of", known_call, METH_O, "Whether a payload surely holds no event, slot or key that is not known."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot known_slots[] = {
    {Py_tp_doc, "Known(((tag, lengths, metadata slots, keys), ...))"},
    {Py_tp_new, known_new},
    {Py_tp_dealloc, known_dealloc},
    {Py_tp_methods, known_methods},
    {0, NULL},
};

static PyType_Spec known_spec = {
    .name = "kvwire._encode_ext.Known",
    .basicsize = sizeof(Known),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = known_slots,
};

/* ---- the module ----------------------------------------------------------------------------------------------- */

static int
add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int done = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return done;
}

static int
module_exec(PyObject *module)
{
    if (add_type(module, &encoder_spec) != 0 || add_type(module, &known_spec) != 0) {
        return -1;
    }
    static const struct {
        const char *name;
        int value;
    } constants[] = {
        {"API", API},       {"PLAIN", PLAIN},       {"EXTRA_KEYS", EXTRA_KEYS},
        {"TOKENS", TOKENS}, {"METADATA", METADATA}, {"SALT", SALT},
    };
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0) {
            return -1;
        }
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kvwire._encode_ext",
    .m_doc = "Writes batches in one dialect (kvwire/_encode.py).",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__encode_ext(void)
{
    return PyModuleDef_Init(&module_def);
}
