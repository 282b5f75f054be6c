/* kvwire._decode_ext: reads a payload straight into neutral events.
 *
 * It reads what it is certain of. For everything else (a wrong type, an unknown tag, a key twice, text that is not UTF-8,
 * bytes that end too early) it returns None, and the pure path says what the bytes mean or what is wrong with them. So
 * there is one failure here, "unsure", without an error of its own: functions return NULL or UNSURE, and what Python
 * error may be set then is cleared at the door.
 *
 * No length is trusted: an element takes a byte at least, so a count beyond the bytes that are left is unsure before
 * anything is allocated. Depth is bounded by the grammar, and by MAX_SKIP_DEPTH where a value is passed over.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "structmember.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define OK 0
#define UNSURE (-1)

#if defined(__GNUC__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define NOINLINE __attribute__((noinline))
#else
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#define NOINLINE
#endif

enum {
    MAX_FIELDS = 16,     /* of one event class */
    MAX_SLOTS = 16,      /* of one event after the tag, as far as a dialect knows them */
    MAX_COUNT = 40,      /* slots or keys of one event, the unknown included; more is for the pure path */
    MAX_UNKNOWN_KEYS = 8,
    MAX_NAME = 32,
    MAX_TAGS = 4,
    MAX_SKIP_DEPTH = 8,
    MAX_KEY_DEPTH = 4, /* kvwire._fields.MAX_KEY_DEPTH */
    TEXTS = 256,       /* entries of the cache of short texts; a power of two */
    MAX_TEXT = 24,     /* bytes of a text that is worth caching */
};

enum { METADATA_SLOT = -1 };

/* What a field may hold. */
typedef enum { HASHES, HASH, TOKENS, COUNT, INT, TEXT, EXTRA_KEYS, LOOKAHEAD, SALT, KINDS } Kind;

static const char SALT_PREFIX[] = "dynamo-cache-salt:";
#define SALT_PREFIX_LEN ((Py_ssize_t)sizeof(SALT_PREFIX) - 1)
static const char SALT_KEY[] = "cache_salt";
#define SALT_KEY_LEN ((Py_ssize_t)sizeof(SALT_KEY) - 1)

typedef struct {
    Py_ssize_t offset; /* of the slot in an instance */
    Kind kind;
    uint8_t name_len;
    char name[MAX_NAME];
} Field;

/* One event class as one decoder reads it. */
typedef struct {
    PyTypeObject *type;
    uint8_t tag_len;
    char tag[MAX_NAME];
    int field_count, slot_count;
    int salt, lora_name; /* indexes of these fields, or -1 */
    uint32_t needed;     /* bit per field: must be there */
    uint32_t keys;       /* bit per field: a map may carry it */
    Field fields[MAX_FIELDS];
    int8_t slots[MAX_SLOTS]; /* the field at slot 1, 2, ... or METADATA_SLOT */
} Layout;

typedef struct {
    PyObject_HEAD
    PyTypeObject *batch_type;
    Py_ssize_t ts, events, rank; /* offsets in a batch */
    int strict, arrays, maps, any_slot7;
    int min_arity, max_arity;
    PyObject *media; /* what slot 1 of an array clear may not hold, or NULL */
    PyObject *raw;   /* msgspec.Raw, to keep tokens as bytes; NULL to read them */
    PyObject *fallback; /* reads what this decoder is not sure of, or NULL */
    int layout_count;
    Layout layouts[MAX_TAGS];
    PyObject *texts[TEXTS];
} Decoder;

/* A place in the payload. `cur` never passes `end`. */
typedef struct {
    const uint8_t *cur, *end;
    Decoder *self;
} Reader;

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

static inline Py_ssize_t
left(const Reader *r)
{
    return r->end - r->cur;
}

static inline uint16_t
get_16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t
get_32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t
get_64(const uint8_t *at)
{
    return (uint64_t)get_32(at) << 32 | get_32(at + 4);
}

/* The value of a length of `width` bytes (1, 2, 4) behind the first byte; moves behind it. -1 when unsure. */
static inline Py_ssize_t
read_length(Reader *r, int width)
{
    if (left(r) < 1 + width) {
        return UNSURE;
    }
    const uint8_t *at = r->cur + 1;
    r->cur = at + width;
    uint32_t value = width == 1 ? at[0] : width == 2 ? get_16(at) : get_32(at);
    return (uint64_t)value > (uint64_t)left(r) ? UNSURE : (Py_ssize_t)value;
}

/* The element count of an array. Never more than the bytes that are left. */
static inline Py_ssize_t
read_array_header(Reader *r)
{
    if (UNLIKELY(left(r) < 1)) {
        return UNSURE;
    }
    uint8_t first = *r->cur;
    if (LIKELY((first & 0xF0) == 0x90)) {
        r->cur++;
        return (first & 15) > left(r) ? UNSURE : (first & 15);
    }
    return first == 0xDC ? read_length(r, 2) : first == 0xDD ? read_length(r, 4) : UNSURE;
}

static inline Py_ssize_t
read_map_header(Reader *r)
{
    if (UNLIKELY(left(r) < 1)) {
        return UNSURE;
    }
    uint8_t first = *r->cur;
    if (LIKELY((first & 0xF0) == 0x80)) {
        r->cur++;
        return (first & 15) > left(r) ? UNSURE : (first & 15);
    }
    return first == 0xDE ? read_length(r, 2) : first == 0xDF ? read_length(r, 4) : UNSURE;
}

/* The bytes of a str; moves behind them. Whether they are UTF-8 is the caller's question. -1 when unsure. */
static inline Py_ssize_t
read_str_bytes(Reader *r, const char **text)
{
    if (UNLIKELY(left(r) < 1)) {
        return UNSURE;
    }
    uint8_t first = *r->cur;
    Py_ssize_t size;
    if (LIKELY((first & 0xE0) == 0xA0)) {
        size = first & 31;
        r->cur++;
        if (size > left(r)) {
            return UNSURE;
        }
    }
    else {
        size = first == 0xD9   ? read_length(r, 1)
               : first == 0xDA ? read_length(r, 2)
               : first == 0xDB ? read_length(r, 4)
                               : UNSURE;
        if (size < 0) {
            return UNSURE;
        }
    }
    *text = (const char *)r->cur;
    r->cur += size;
    return size;
}

static inline int
take_nil(Reader *r)
{
    if (LIKELY(left(r) > 0) && *r->cur == 0xC0) {
        r->cur++;
        return 1;
    }
    return 0;
}

static int
is_ascii(const char *text, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        if ((uint8_t)text[i] >= 0x80) {
            return 0;
        }
    }
    return 1;
}

/* ---- passing over --------------------------------------------------------------------------------------------- */

static int skip(Reader *r, int depth);

static int
skip_bytes(Reader *r, Py_ssize_t size)
{
    if (size < 0 || size > left(r)) {
        return UNSURE;
    }
    r->cur += size;
    return OK;
}

static int
skip_many(Reader *r, Py_ssize_t count, int depth)
{
    if (count < 0 || depth == 0) {
        return UNSURE;
    }
    for (; count > 0; count--) {
        if (skip(r, depth - 1) != OK) {
            return UNSURE;
        }
    }
    return OK;
}

/* Pass over one value of any type but ext. */
static int
skip(Reader *r, int depth)
{
    if (left(r) < 1) {
        return UNSURE;
    }
    uint8_t first = *r->cur;
    if (first < 0x80 || first >= 0xE0) {
        return skip_bytes(r, 1);
    }
    if (first < 0x90) {
        return skip_many(r, 2 * read_map_header(r), depth);
    }
    if (first < 0xA0) {
        return skip_many(r, read_array_header(r), depth);
    }
    if (first < 0xC0) {
        return skip_bytes(r, 1 + (first & 31));
    }
    switch (first) {
    case 0xC0: case 0xC2: case 0xC3:
        return skip_bytes(r, 1);
    case 0xC4: case 0xD9:
        return skip_bytes(r, read_length(r, 1));
    case 0xC5: case 0xDA:
        return skip_bytes(r, read_length(r, 2));
    case 0xC6: case 0xDB:
        return skip_bytes(r, read_length(r, 4));
    case 0xCC: case 0xD0:
        return skip_bytes(r, 2);
    case 0xCD: case 0xD1:
        return skip_bytes(r, 3);
    case 0xCA: case 0xCE: case 0xD2:
        return skip_bytes(r, 5);
    case 0xCB: case 0xCF: case 0xD3:
        return skip_bytes(r, 9);
    case 0xDC: case 0xDD:
        return skip_many(r, read_array_header(r), depth);
    case 0xDE: case 0xDF:
        return skip_many(r, 2 * read_map_header(r), depth);
    default:
        return UNSURE;
    }
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

/* Bytes of an int by its first byte; 0 for what is no int. */
static const uint8_t INT_BYTES[256] = {
#define FOUR(n) n, n, n, n
#define SIXTEEN(n) FOUR(n), FOUR(n), FOUR(n), FOUR(n)
    SIXTEEN(1), SIXTEEN(1), SIXTEEN(1), SIXTEEN(1), SIXTEEN(1), SIXTEEN(1), SIXTEEN(1), SIXTEEN(1), /* 00 .. 7f */
    SIXTEEN(0), SIXTEEN(0), SIXTEEN(0), SIXTEEN(0),                                                 /* 80 .. bf */
    FOUR(0), FOUR(0), FOUR(0), 2, 3, 5, 9,                                                          /* c0 .. cf */
    2, 3, 5, 9, FOUR(0), FOUR(0), FOUR(0),                                                          /* d0 .. df */
    SIXTEEN(1), SIXTEEN(1),                                                                         /* e0 .. ff */
#undef SIXTEEN
#undef FOUR
};

/* The int at `at`, all of whose bytes are there, as a Python int. */
static inline PyObject *
int_at(const uint8_t *at)
{
    uint8_t first = *at;
    switch (first) {
    case 0xCC:
        return PyLong_FromLong(at[1]);
    case 0xCD:
        return PyLong_FromLong(get_16(at + 1));
    case 0xCE:
        return PyLong_FromLongLong(get_32(at + 1));
    case 0xCF:
        return PyLong_FromUnsignedLongLong(get_64(at + 1));
    case 0xD0:
        return PyLong_FromLong((int8_t)at[1]);
    case 0xD1:
        return PyLong_FromLong((int16_t)get_16(at + 1));
    case 0xD2:
        return PyLong_FromLong((int32_t)get_32(at + 1));
    case 0xD3:
        return PyLong_FromLongLong((int64_t)get_64(at + 1));
    default:
        return PyLong_FromLong((int8_t)first);
    }
}

static inline PyObject *
read_int(Reader *r)
{
    if (UNLIKELY(left(r) < 1)) {
        return NULL;
    }
    int width = INT_BYTES[*r->cur];
    if (UNLIKELY(width == 0 || width > left(r))) {
        return NULL;
    }
    const uint8_t *at = r->cur;
    r->cur += width;
    return int_at(at);
}

static double
float_32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double
float_64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static PyObject *
read_float(Reader *r)
{
    const uint8_t *at = r->cur;
    if (left(r) >= 9 && *at == 0xCB) {
        r->cur += 9;
        return PyFloat_FromDouble(float_64(get_64(at + 1)));
    }
    if (left(r) >= 5 && *at == 0xCA) {
        r->cur += 5;
        return PyFloat_FromDouble(float_32(get_32(at + 1)));
    }
    return NULL;
}

/* ---- text and digests ----------------------------------------------------------------------------------------- */

static PyObject *
new_ascii(const char *text, Py_ssize_t size)
{
    PyObject *made = PyUnicode_New(size, 127);
    if (made != NULL) {
        memcpy(PyUnicode_DATA(made), text, (size_t)size);
    }
    return made;
}

/* Media, kinds and adapters come again and again: one str serves them all, as long as its place in the cache is not
 * wanted by another. */
static PyObject *
cached_text(Decoder *self, const char *text, Py_ssize_t size)
{
    uint32_t mixed = (uint32_t)size;
    for (Py_ssize_t i = 0; i < size; i++) {
        mixed = (mixed ^ (uint8_t)text[i]) * 16777619u;
    }
    PyObject **place = &self->texts[(mixed ^ mixed >> 15) & (TEXTS - 1)];
    PyObject *known = *place;
    if (known != NULL && PyUnicode_GET_LENGTH(known) == size && memcmp(PyUnicode_DATA(known), text, (size_t)size) == 0) {
        Py_INCREF(known);
        return known;
    }
    PyObject *made = new_ascii(text, size);
    if (made != NULL) {
        Py_INCREF(made);
        *place = made;
        Py_XDECREF(known);
    }
    return made;
}

static PyObject *
text_of(Decoder *self, const char *text, Py_ssize_t size)
{
    if (LIKELY(is_ascii(text, size))) {
        return 0 < size && size <= MAX_TEXT ? cached_text(self, text, size) : new_ascii(text, size);
    }
    return PyUnicode_DecodeUTF8(text, size, NULL);
}

static PyObject *
read_text(Reader *r)
{
    const char *text;
    Py_ssize_t size = read_str_bytes(r, &text);
    return size < 0 ? NULL : text_of(r->self, text, size);
}

static PyObject *
read_bin(Reader *r)
{
    if (left(r) < 1) {
        return NULL;
    }
    uint8_t first = *r->cur;
    Py_ssize_t size = first == 0xC4   ? read_length(r, 1)
                      : first == 0xC5 ? read_length(r, 2)
                      : first == 0xC6 ? read_length(r, 4)
                                      : UNSURE;
    if (size < 0) {
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize((const char *)r->cur, size);
    r->cur += size;
    return made;
}

/* ---- lists ---------------------------------------------------------------------------------------------------- */

typedef PyObject *(*ReadItem)(Reader *r);

static inline PyObject *
read_list(Reader *r, ReadItem read_item)
{
    Py_ssize_t count = read_array_header(r);
    if (UNLIKELY(count < 0)) {
        return NULL;
    }
    PyObject *list = PyList_New(count);
    if (UNLIKELY(list == NULL)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = read_item(r);
        if (UNLIKELY(item == NULL)) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static inline PyObject *
read_hash(Reader *r)
{
    if (LIKELY(left(r) > 0) && INT_BYTES[*r->cur]) {
        return read_int(r);
    }
    return read_bin(r);
}

static PyObject *
read_hashes(Reader *r)
{
    return read_list(r, read_hash);
}

/* ---- tokens --------------------------------------------------------------------------------------------------- */

static NOINLINE PyObject *
read_pair(Reader *r)
{
    if (read_array_header(r) != 2) {
        return NULL;
    }
    PyObject *first = read_int(r);
    PyObject *second = first == NULL ? NULL : read_int(r);
    PyObject *pair = second == NULL ? NULL : PyTuple_New(2);
    if (pair == NULL) {
        Py_XDECREF(first);
        Py_XDECREF(second);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, first);
    PyTuple_SET_ITEM(pair, 1, second);
    return pair;
}

/* A token that is no int: a pair, or text. */
static NOINLINE PyObject *
read_odd_token(Reader *r)
{
    if (left(r) < 1) {
        return NULL;
    }
    uint8_t first = *r->cur;
    return (first & 0xF0) == 0x90 || first == 0xDC || first == 0xDD ? read_pair(r) : read_text(r);
}

static inline PyObject *
read_token(Reader *r)
{
    /* Nearly every token has two or four bytes; what follows saves them the table. */
    if (LIKELY(left(r) >= 5)) {
        const uint8_t *at = r->cur;
        if (LIKELY(*at == 0xCD)) {
            r->cur += 3;
            return PyLong_FromUnsignedLong(get_16(at + 1));
        }
        if (LIKELY(*at == 0xCE)) {
            r->cur += 5;
            return PyLong_FromUnsignedLong(get_32(at + 1));
        }
        if (LIKELY(*at < 0x80)) {
            r->cur++;
            return PyLong_FromLong(*at);
        }
    }
    PyObject *made = read_int(r);
    return LIKELY(made != NULL) ? made : read_odd_token(r);
}

static int
skip_odd_token(Reader *r)
{
    if (left(r) < 1) {
        return UNSURE;
    }
    uint8_t first = *r->cur;
    if ((first & 0xF0) != 0x90 && first != 0xDC && first != 0xDD) {
        const char *text;
        Py_ssize_t size = read_str_bytes(r, &text);
        return size >= 0 && is_ascii(text, size) ? OK : UNSURE;
    }
    if (read_array_header(r) != 2) {
        return UNSURE;
    }
    for (int i = 0; i < 2; i++) {
        int width = left(r) > 0 ? INT_BYTES[*r->cur] : 0;
        if (width == 0 || width > left(r)) {
            return UNSURE;
        }
        r->cur += width;
    }
    return OK;
}

/* Pass over `count` tokens. Each is looked at, so that tokens left as bytes are known to be tokens. */
static int
skip_tokens(Reader *r, Py_ssize_t count)
{
    const uint8_t *at = r->cur, *end = r->end;
    for (; count > 0; count--) {
        int width = LIKELY(at < end) ? INT_BYTES[*at] : 0;
        if (LIKELY(width != 0)) {
            if (UNLIKELY(width > end - at)) {
                return UNSURE;
            }
            at += width;
            continue;
        }
        r->cur = at;
        if (skip_odd_token(r) != OK) {
            return UNSURE;
        }
        at = r->cur;
    }
    r->cur = at;
    return OK;
}

/* The tokens as the bytes that they are: a copy of them alone, so that they do not keep the payload alive. */
static PyObject *
keep_tokens(Reader *r)
{
    const uint8_t *start = r->cur;
    Py_ssize_t count = read_array_header(r);
    if (count < 0 || skip_tokens(r, count) != OK) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)start, r->cur - start);
    if (bytes == NULL) {
        return NULL;
    }
    PyObject *kept = PyObject_CallFunctionObjArgs(r->self->raw, bytes, NULL);
    Py_DECREF(bytes);
    return kept;
}

static inline PyObject *
read_tokens(Reader *r)
{
    if (take_nil(r)) {
        return r->self->strict ? NULL : PyList_New(0);
    }
    return r->self->raw != NULL ? keep_tokens(r) : read_list(r, read_token);
}

/* ---- extra keys ----------------------------------------------------------------------------------------------- */

static PyObject *read_any(Reader *r, int depth);

static PyObject *
read_any_list(Reader *r, int depth)
{
    Py_ssize_t count = read_array_header(r);
    PyObject *list = count < 0 || depth == 0 ? NULL : PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = read_any(r, depth - 1);
        if (item == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, item);
        }
    }
    return list;
}

static PyObject *
shared(Reader *r, PyObject *value)
{
    r->cur++;
    Py_INCREF(value);
    return value;
}

/* A value of any type but map and ext. */
static PyObject *
read_any(Reader *r, int depth)
{
    if (left(r) < 1) {
        return NULL;
    }
    uint8_t first = *r->cur;
    if (INT_BYTES[first]) {
        return read_int(r);
    }
    if ((first & 0xF0) == 0x90) {
        return read_any_list(r, depth);
    }
    switch (first) {
    case 0xC0:
        return shared(r, Py_None);
    case 0xC2:
        return shared(r, Py_False);
    case 0xC3:
        return shared(r, Py_True);
    case 0xC4: case 0xC5: case 0xC6:
        return read_bin(r);
    case 0xCA: case 0xCB:
        return read_float(r);
    case 0xDC: case 0xDD:
        return read_any_list(r, depth);
    default:
        return read_text(r);
    }
}

static PyObject *
read_extra_key(Reader *r)
{
    return read_any(r, MAX_KEY_DEPTH);
}

static PyObject *
read_extra_keys_of_block(Reader *r)
{
    if (take_nil(r)) {
        Py_RETURN_NONE;
    }
    return read_list(r, read_extra_key);
}

static PyObject *
read_ints(Reader *r)
{
    return read_list(r, read_int);
}

/* ---- salts ---------------------------------------------------------------------------------------------------- */

#define SLOT(event, field) (*(PyObject **)((char *)(event) + (field)->offset))

/* Set the salt of an event; steals `salt`. Two that differ are unsure. */
static int
set_salt(PyObject *event, const Layout *layout, PyObject *salt)
{
    if (salt == NULL || layout->salt < 0) {
        Py_XDECREF(salt);
        return UNSURE;
    }
    PyObject **slot = &SLOT(event, &layout->fields[layout->salt]);
    if (*slot == NULL) {
        *slot = salt;
        return OK;
    }
    int same = PyUnicode_Compare(*slot, salt) == 0;
    Py_DECREF(salt);
    return same ? OK : UNSURE;
}

/* The metadata map {"cache_salt": str}. */
static int
read_metadata(Reader *r, PyObject *event, const Layout *layout)
{
    const char *key;
    if (read_map_header(r) != 1 || read_str_bytes(r, &key) != SALT_KEY_LEN || memcmp(key, SALT_KEY, SALT_KEY_LEN) != 0) {
        return UNSURE;
    }
    return set_salt(event, layout, read_text(r));
}

/* The salt that an extra key carries behind the prefix. */
static int
salt_of_key(Decoder *self, PyObject *event, const Layout *layout, PyObject *key)
{
    if (!PyUnicode_Check(key)) {
        return OK;
    }
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(key, &size);
    if (text == NULL) {
        return UNSURE;
    }
    if (size < SALT_PREFIX_LEN || memcmp(text, SALT_PREFIX, SALT_PREFIX_LEN) != 0) {
        return OK;
    }
    return set_salt(event, layout, text_of(self, text + SALT_PREFIX_LEN, size - SALT_PREFIX_LEN));
}

static int
salts_of_keys(Decoder *self, PyObject *event, const Layout *layout, PyObject *extra_keys)
{
    if (extra_keys == Py_None) {
        return OK;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(extra_keys); i++) {
        PyObject *entry = PyList_GET_ITEM(extra_keys, i);
        for (Py_ssize_t j = 0; entry != Py_None && j < PyList_GET_SIZE(entry); j++) {
            if (salt_of_key(self, event, layout, PyList_GET_ITEM(entry, j)) != OK) {
                return UNSURE;
            }
        }
    }
    return OK;
}

/* ---- one field ------------------------------------------------------------------------------------------------ */

static inline PyObject *
read_value(Reader *r, Kind kind)
{
    if (kind == HASHES) {
        return read_hashes(r);
    }
    if (kind == TOKENS) {
        return read_tokens(r);
    }
    if (take_nil(r)) {
        if (kind == COUNT) {
            return r->self->strict ? NULL : PyLong_FromLong(0);
        }
        Py_RETURN_NONE;
    }
    switch (kind) {
    case HASH:
        return read_hash(r);
    case COUNT: case INT:
        return read_int(r);
    case TEXT: case SALT:
        return read_text(r);
    case EXTRA_KEYS:
        return read_list(r, read_extra_keys_of_block);
    case LOOKAHEAD:
        return read_list(r, read_ints);
    default:
        return NULL;
    }
}

/* Read a field into its slot, which is empty, unless it is the salt's. */
static inline int
read_field(Reader *r, PyObject *event, const Layout *layout, const Field *field)
{
    PyObject *value = read_value(r, field->kind);
    if (UNLIKELY(value == NULL)) {
        return UNSURE;
    }
    if (UNLIKELY(field->kind == SALT)) {
        if (value != Py_None) {
            return set_salt(event, layout, value);
        }
        Py_DECREF(value);
        return OK;
    }
    SLOT(event, field) = value;
    return UNLIKELY(field->kind == EXTRA_KEYS) ? salts_of_keys(r->self, event, layout, value) : OK;
}

/* ---- one event ------------------------------------------------------------------------------------------------ */

static const Layout *
layout_of(const Decoder *self, const char *tag, Py_ssize_t size)
{
    for (int i = 0; i < self->layout_count; i++) {
        const Layout *layout = &self->layouts[i];
        if (layout->tag_len == size && memcmp(layout->tag, tag, (size_t)size) == 0) {
            return layout;
        }
    }
    return NULL;
}

static const Layout *
read_tag(Reader *r)
{
    const char *tag;
    Py_ssize_t size = read_str_bytes(r, &tag);
    return size < 0 ? NULL : layout_of(r->self, tag, size);
}

/* Give the fields that did not come their None, once those that must come are there. */
static int
complete(PyObject *event, const Layout *layout, uint32_t seen)
{
    if (UNLIKELY((seen & layout->needed) != layout->needed)) {
        return UNSURE;
    }
    for (int i = 0; i < layout->field_count; i++) {
        PyObject **slot = &SLOT(event, &layout->fields[i]);
        if (*slot == NULL) {
            Py_INCREF(Py_None);
            *slot = Py_None;
        }
    }
    return OK;
}

static inline int
read_metadata_slot(Reader *r, PyObject *event, const Layout *layout)
{
    if (!r->self->strict && take_nil(r)) {
        return OK;
    }
    return read_metadata(r, event, layout);
}

/* Slots that the dialect does not have. One with a map may hide a salt. */
static int
skip_tail(Reader *r, Py_ssize_t count)
{
    for (; count > 0; count--) {
        uint8_t first = left(r) > 0 ? *r->cur : 0xC1;
        if (r->self->strict || (first & 0xF0) == 0x80 || first == 0xDE || first == 0xDF || skip(r, MAX_SKIP_DEPTH) != OK) {
            return UNSURE;
        }
    }
    return OK;
}

/* Whether the owner in a clear may be the medium of a producer that puts it there. */
static int
owner_is_medium(const Decoder *self, PyObject *event, const Layout *layout)
{
    PyObject *owner = SLOT(event, &layout->fields[0]);
    return owner != NULL && owner != Py_None && PySet_Contains(self->media, owner) != 0;
}

static int
read_slots(Reader *r, PyObject *event, const Layout *layout, Py_ssize_t count)
{
    Decoder *self = r->self;
    Py_ssize_t known = count < layout->slot_count ? count : layout->slot_count;
    uint32_t seen = 0;
    for (Py_ssize_t i = 0; i < known; i++) {
        int index = layout->slots[i];
        if (index == METADATA_SLOT) {
            if (read_metadata_slot(r, event, layout) != OK) {
                return UNSURE;
            }
            continue;
        }
        if (index == layout->lora_name && self->any_slot7 && left(r) > 0 && (*r->cur & 0xF0) == 0x80) {
            if (read_metadata(r, event, layout) != OK) {
                return UNSURE;
            }
            continue;
        }
        if (UNLIKELY(read_field(r, event, layout, &layout->fields[index]) != OK)) {
            return UNSURE;
        }
        seen |= 1u << index;
    }
    if (UNLIKELY(skip_tail(r, count - known) != OK)) {
        return UNSURE;
    }
    if (self->media != NULL && layout->field_count == 1 && owner_is_medium(self, event, layout)) {
        return UNSURE;
    }
    return complete(event, layout, seen);
}

static PyObject *
read_array_event(Reader *r)
{
    Py_ssize_t count = read_array_header(r);
    if (count < 1 || count > MAX_COUNT) {
        return NULL;
    }
    const Layout *layout = read_tag(r);
    if (layout == NULL) {
        return NULL;
    }
    PyObject *event = layout->type->tp_alloc(layout->type, 0);
    if (event != NULL && UNLIKELY(read_slots(r, event, layout, count - 1) != OK)) {
        Py_CLEAR(event);
    }
    return event;
}

static inline int
is_type_key(const char *key, Py_ssize_t size)
{
    return size == 4 && memcmp(key, "type", 4) == 0;
}

/* The layout of a map event of `count` keys; leaves the place where it is. Nearly always the tag comes first. */
static const Layout *
find_tag(const Reader *r, Py_ssize_t count)
{
    Reader ahead = *r;
    for (; count > 0; count--) {
        const char *key;
        Py_ssize_t size = read_str_bytes(&ahead, &key);
        if (size < 0) {
            return NULL;
        }
        if (is_type_key(key, size)) {
            return read_tag(&ahead);
        }
        if (skip(&ahead, MAX_SKIP_DEPTH) != OK) {
            return NULL;
        }
    }
    return NULL;
}

/* The field of a key, looked for from `from` on: keys mostly come in the order of the fields. -1 when unknown. */
static inline int
field_of(const Layout *layout, int from, const char *key, Py_ssize_t size)
{
    for (int tried = 0, i = from; tried < layout->field_count; tried++, i++) {
        if (i >= layout->field_count) {
            i = 0;
        }
        const Field *field = &layout->fields[i];
        if (field->name_len == size && memcmp(field->name, key, (size_t)size) == 0) {
            return layout->keys >> i & 1 ? i : -1;
        }
    }
    return -1;
}

typedef struct {
    int count;
    const char *keys[MAX_UNKNOWN_KEYS];
    Py_ssize_t sizes[MAX_UNKNOWN_KEYS];
} Unknown;

/* Pass over the value of an unknown key, unless the key came before. */
static NOINLINE int
skip_unknown(Reader *r, Unknown *unknown, const char *key, Py_ssize_t size)
{
    if (r->self->strict || unknown->count == MAX_UNKNOWN_KEYS || !is_ascii(key, size)) {
        return UNSURE;
    }
    for (int i = 0; i < unknown->count; i++) {
        if (unknown->sizes[i] == size && memcmp(unknown->keys[i], key, (size_t)size) == 0) {
            return UNSURE;
        }
    }
    unknown->keys[unknown->count] = key;
    unknown->sizes[unknown->count++] = size;
    return skip(r, MAX_SKIP_DEPTH);
}

static int
read_pairs(Reader *r, PyObject *event, const Layout *layout, Py_ssize_t count)
{
    Unknown unknown;
    unknown.count = 0;
    uint32_t seen = 0;
    int typed = 0, next = 0;
    for (; count > 0; count--) {
        const char *key;
        Py_ssize_t size = read_str_bytes(r, &key);
        if (UNLIKELY(size < 0)) {
            return UNSURE;
        }
        if (is_type_key(key, size)) {
            if (typed++ || read_tag(r) == NULL) {
                return UNSURE;
            }
            continue;
        }
        int index = field_of(layout, next, key, size);
        if (UNLIKELY(index < 0)) {
            if (skip_unknown(r, &unknown, key, size) != OK) {
                return UNSURE;
            }
            continue;
        }
        if (UNLIKELY(seen >> index & 1) || UNLIKELY(read_field(r, event, layout, &layout->fields[index]) != OK)) {
            return UNSURE;
        }
        seen |= 1u << index;
        next = index + 1;
    }
    return complete(event, layout, seen);
}

static PyObject *
read_map_event(Reader *r)
{
    Py_ssize_t count = read_map_header(r);
    if (count < 1 || count > MAX_COUNT) {
        return NULL;
    }
    const Layout *layout = find_tag(r, count);
    if (layout == NULL) {
        return NULL;
    }
    PyObject *event = layout->type->tp_alloc(layout->type, 0);
    if (event != NULL && UNLIKELY(read_pairs(r, event, layout, count) != OK)) {
        Py_CLEAR(event);
    }
    return event;
}

static PyObject *
read_event(Reader *r)
{
    if (UNLIKELY(left(r) < 1)) {
        return NULL;
    }
    uint8_t first = *r->cur;
    if ((first & 0xF0) == 0x90 || first == 0xDC || first == 0xDD) {
        return r->self->arrays ? read_array_event(r) : NULL;
    }
    return r->self->maps ? read_map_event(r) : NULL;
}

/* ---- the batch ------------------------------------------------------------------------------------------------ */

/* Seconds, as a finite float; an int is taken for one, except by strict reading. */
static PyObject *
read_ts(Reader *r)
{
    if (left(r) < 1) {
        return NULL;
    }
    PyObject *ts = NULL;
    if (*r->cur == 0xCA || *r->cur == 0xCB) {
        ts = read_float(r);
    }
    else if (!r->self->strict) {
        PyObject *whole = read_int(r);
        ts = whole == NULL ? NULL : PyNumber_Float(whole);
        Py_XDECREF(whole);
    }
    if (ts != NULL && !isfinite(PyFloat_AS_DOUBLE(ts))) {
        Py_CLEAR(ts);
    }
    return ts;
}

#define AT(batch, offset) (*(PyObject **)((char *)(batch) + (offset)))

static PyObject *
read_rank(Reader *r, Py_ssize_t arity)
{
    if (arity == 3) {
        return read_value(r, INT);
    }
    Py_RETURN_NONE;
}

static int
fill_batch(Reader *r, PyObject *batch)
{
    const Decoder *self = r->self;
    Py_ssize_t arity = read_array_header(r);
    if (arity < self->min_arity || arity > self->max_arity) {
        return UNSURE;
    }
    AT(batch, self->ts) = read_ts(r);
    if (AT(batch, self->ts) == NULL) {
        return UNSURE;
    }
    AT(batch, self->events) = read_list(r, read_event);
    if (AT(batch, self->events) == NULL) {
        return UNSURE;
    }
    AT(batch, self->rank) = read_rank(r, arity);
    return AT(batch, self->rank) != NULL && r->cur == r->end ? OK : UNSURE;
}

/* What the fallback makes of a payload that this decoder is not sure of; None where there is no fallback. */
static NOINLINE PyObject *
unsure_of(Decoder *self, PyObject *payload)
{
    PyErr_Clear();
    if (self->fallback == NULL) {
        Py_RETURN_NONE;
    }
    return PyObject_CallOneArg(self->fallback, payload);
}

static inline PyObject *
decode_bytes(Decoder *self, PyObject *payload)
{
    const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(payload);
    Reader reader = {start, start + PyBytes_GET_SIZE(payload), self};
    PyObject *batch = self->batch_type->tp_alloc(self->batch_type, 0);
    if (LIKELY(batch != NULL && fill_batch(&reader, batch) == OK)) {
        return batch;
    }
    Py_XDECREF(batch);
    return unsure_of(self, payload);
}

/* A frame as pyzmq hands it out uncopied, or a buffer that is used again: it is copied, since lazy tokens may outlive it. */
static NOINLINE PyObject *
decode_buffer(Decoder *self, PyObject *payload)
{
    PyObject *copy = PyMemoryView_Check(payload) || PyByteArray_CheckExact(payload) ? PyBytes_FromObject(payload) : NULL;
    if (copy == NULL) {
        return unsure_of(self, payload);
    }
    PyObject *batch = decode_bytes(self, copy);
    Py_DECREF(copy);
    return batch;
}

/* The batch; when unsure, what the fallback gives. */
static PyObject *
decoder_decode(PyObject *object, PyObject *payload)
{
    Decoder *self = (Decoder *)object;
    return LIKELY(PyBytes_CheckExact(payload)) ? decode_bytes(self, payload) : decode_buffer(self, payload);
}

/* ---- making a decoder ----------------------------------------------------------------------------------------- */

/* Whether instances can be made with tp_alloc and filled through their slots alone. */
static int
check_plain(PyTypeObject *type)
{
    if (PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC) || type->tp_itemsize != 0 || type->tp_dictoffset > 0
        || !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PyErr_Format(PyExc_TypeError, "instances of %s cannot be made here", type->tp_name);
        return UNSURE;
    }
    return OK;
}

/* The offset of a slot that instances of `type` have, or -1 with an error. */
static Py_ssize_t
slot_offset(PyTypeObject *type, PyObject *descriptor)
{
    if (Py_TYPE(descriptor) != &PyMemberDescr_Type || !PyType_IsSubtype(type, PyDescr_TYPE(descriptor))) {
        PyErr_Format(PyExc_TypeError, "%R is no slot of %s", descriptor, type->tp_name);
        return UNSURE;
    }
    const PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    Py_ssize_t last = type->tp_basicsize - (Py_ssize_t)sizeof(PyObject *);
    if (member->type != T_OBJECT_EX || member->offset < (Py_ssize_t)sizeof(PyObject) || member->offset > last
        || member->offset % (Py_ssize_t)sizeof(PyObject *) != 0) {
        PyErr_Format(PyExc_TypeError, "%R is no slot for any object", descriptor);
        return UNSURE;
    }
    return member->offset;
}

static int
copy_name(char *to, uint8_t *len, PyObject *name)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == NULL || size > MAX_NAME) {
        PyErr_SetString(PyExc_ValueError, "a name is too long");
        return UNSURE;
    }
    memcpy(to, text, (size_t)size);
    *len = (uint8_t)size;
    return OK;
}

static int
set_field(Layout *layout, PyObject *described)
{
    PyObject *name, *descriptor;
    int kind, needed, key;
    if (layout->field_count == MAX_FIELDS || !PyArg_ParseTuple(described, "UiOpp", &name, &kind, &descriptor, &needed, &key)
        || kind < 0 || kind >= KINDS) {
        PyErr_SetString(PyExc_ValueError, "a field is (name, kind, slot, needed, key)");
        return UNSURE;
    }
    int index = layout->field_count;
    Field *field = &layout->fields[index];
    field->kind = (Kind)kind;
    field->offset = slot_offset(layout->type, descriptor);
    if (field->offset < 0 || copy_name(field->name, &field->name_len, name) != OK) {
        return UNSURE;
    }
    for (int i = 0; i < index; i++) {
        if (layout->fields[i].offset == field->offset) {
            PyErr_SetString(PyExc_ValueError, "two fields in one slot");
            return UNSURE;
        }
    }
    layout->needed |= (uint32_t)needed << index;
    layout->keys |= (uint32_t)key << index;
    if (kind == SALT) {
        layout->salt = index;
    }
    if (PyUnicode_CompareWithASCIIString(name, "lora_name") == 0) {
        layout->lora_name = index;
    }
    layout->field_count++;
    return OK;
}

static int
set_slots(Layout *layout, PyObject *slots)
{
    if (PyTuple_GET_SIZE(slots) > MAX_SLOTS) {
        PyErr_SetString(PyExc_ValueError, "too many slots");
        return UNSURE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); i++) {
        long index = PyLong_AsLong(PyTuple_GET_ITEM(slots, i));
        if (index < METADATA_SLOT || index >= layout->field_count || PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a slot is the index of a field, or -1");
            return UNSURE;
        }
        layout->slots[i] = (int8_t)index;
    }
    layout->slot_count = (int)PyTuple_GET_SIZE(slots);
    return OK;
}

static int
set_layout(Decoder *self, PyObject *described)
{
    PyObject *tag, *type, *fields, *slots;
    if (self->layout_count == MAX_TAGS
        || !PyArg_ParseTuple(described, "UO!O!O!", &tag, &PyType_Type, &type, &PyTuple_Type, &fields, &PyTuple_Type, &slots)) {
        PyErr_SetString(PyExc_ValueError, "a layout is (tag, class, fields, slots)");
        return UNSURE;
    }
    if (check_plain((PyTypeObject *)type) != OK) {
        return UNSURE;
    }
    Layout *layout = &self->layouts[self->layout_count++];
    Py_INCREF(type);
    layout->type = (PyTypeObject *)type;
    layout->salt = layout->lora_name = -2; /* unlike METADATA_SLOT */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fields); i++) {
        if (set_field(layout, PyTuple_GET_ITEM(fields, i)) != OK) {
            return UNSURE;
        }
    }
    return copy_name(layout->tag, &layout->tag_len, tag) == OK ? set_slots(layout, slots) : UNSURE;
}

static int
set_batch(Decoder *self, PyObject *described)
{
    PyObject *type, *ts, *events, *rank;
    if (!PyArg_ParseTuple(described, "O!OOO", &PyType_Type, &type, &ts, &events, &rank)
        || check_plain((PyTypeObject *)type) != OK) {
        return UNSURE;
    }
    Py_INCREF(type);
    self->batch_type = (PyTypeObject *)type;
    self->ts = slot_offset(self->batch_type, ts);
    self->events = slot_offset(self->batch_type, events);
    self->rank = slot_offset(self->batch_type, rank);
    return self->ts < 0 || self->events < 0 || self->rank < 0 ? UNSURE : OK;
}

static int
set_up(Decoder *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"batch", "layouts", "strict", "arrays", "maps", "arity", "media", "raw", "fallback", NULL};
    PyObject *batch, *layouts, *media, *raw, *fallback = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!ppp(ii)OO|O", names, &PyTuple_Type, &batch, &PyTuple_Type, &layouts,
                                     &self->strict, &self->arrays, &self->maps, &self->min_arity, &self->max_arity, &media,
                                     &raw, &fallback)) {
        return UNSURE;
    }
    if (self->min_arity < 2 || self->max_arity > 3 || (media != Py_None && !PyFrozenSet_CheckExact(media))) {
        PyErr_SetString(PyExc_ValueError, "arity is 2 to 3, media is a frozenset or None");
        return UNSURE;
    }
    if (media != Py_None) { /* no dialect is told, so a map in slot 7 is what the salted events of one have there */
        Py_INCREF(media);
        self->media = media;
        self->any_slot7 = 1;
    }
    if (raw != Py_None) {
        Py_INCREF(raw);
        self->raw = raw;
    }
    if (fallback != Py_None) {
        Py_INCREF(fallback);
        self->fallback = fallback;
    }
    if (set_batch(self, batch) != OK) {
        return UNSURE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(layouts); i++) {
        if (set_layout(self, PyTuple_GET_ITEM(layouts, i)) != OK) {
            return UNSURE;
        }
    }
    return OK;
}

static PyObject *
decoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL && set_up((Decoder *)self, args, kwargs) != OK) {
        Py_CLEAR(self);
    }
    return self;
}

static void
decoder_dealloc(PyObject *object)
{
    Decoder *self = (Decoder *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->batch_type);
    Py_XDECREF(self->media);
    Py_XDECREF(self->raw);
    Py_XDECREF(self->fallback);
    for (int i = 0; i < self->layout_count; i++) {
        Py_XDECREF(self->layouts[i].type);
    }
    for (int i = 0; i < TEXTS; i++) {
        Py_XDECREF(self->texts[i]);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef decoder_methods[] = {
    {"decode", decoder_decode, METH_O, "The EventBatch of a payload; when unsure, what the fallback gives, or None."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_doc, "Decoder(batch, layouts, strict, arrays, maps, arity, media, raw, fallback); see kvwire/_decode.py."},
    {Py_tp_new, decoder_new},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {0, NULL},
};

static PyType_Spec decoder_spec = {
    .name = "kvwire._decode_ext.Decoder",
    .basicsize = sizeof(Decoder),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = decoder_slots,
};

/* ---- tokens into a buffer ------------------------------------------------------------------------------------- */

/* Read one int of 0 to 2**32 - 1. */
static inline int
read_u32(Reader *r, uint32_t *value)
{
    int width = LIKELY(left(r) > 0) ? INT_BYTES[*r->cur] : 0;
    if (UNLIKELY(width == 0 || width > left(r))) {
        return UNSURE;
    }
    const uint8_t *at = r->cur;
    r->cur += width;
    switch (*at) {
    case 0xCC:
        *value = at[1];
        return OK;
    case 0xCD:
        *value = get_16(at + 1);
        return OK;
    case 0xCE:
        *value = get_32(at + 1);
        return OK;
    case 0xCF:
        *value = get_32(at + 5);
        return get_32(at + 1) == 0 ? OK : UNSURE;
    default:
        *value = *at; /* the signed forms are for the pure path */
        return *at < 0x80 ? OK : UNSURE;
    }
}

/* `count` elements, each of `each` numbers: 1, or 2 for pairs. */
static int
read_u32s(Reader *r, uint32_t *to, Py_ssize_t count, int each)
{
    for (; count > 0; count--) {
        if (each == 2 && read_array_header(r) != 2) {
            return UNSURE;
        }
        for (int i = 0; i < each; i++) {
            if (UNLIKELY(read_u32(r, to++) != OK)) {
                return UNSURE;
            }
        }
    }
    return r->cur == r->end ? OK : UNSURE;
}

static PyObject *
u32s_of(Reader *r)
{
    Py_ssize_t count = take_nil(r) ? 0 : read_array_header(r);
    if (count < 0) {
        return NULL;
    }
    int each = count > 0 && ((*r->cur & 0xF0) == 0x90 || *r->cur == 0xDC || *r->cur == 0xDD) ? 2 : 1;
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, count * each * (Py_ssize_t)sizeof(uint32_t));
    if (numbers != NULL && read_u32s(r, (uint32_t *)PyBytes_AS_STRING(numbers), count, each) != OK) {
        Py_CLEAR(numbers);
    }
    return numbers;
}

static PyObject *
token_bytes(PyObject *Py_UNUSED(module), PyObject *tokens)
{
    Py_buffer view;
    if (PyObject_GetBuffer(tokens, &view, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    const uint8_t *start = view.buf;
    Reader reader = {start, start + view.len, NULL};
    PyObject *numbers = u32s_of(&reader);
    PyBuffer_Release(&view);
    if (numbers != NULL) {
        return numbers;
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* ---- the module ----------------------------------------------------------------------------------------------- */

static const char *const KIND_NAMES[KINDS] = {
    "HASHES", "HASH", "TOKENS", "COUNT", "INT", "TEXT", "EXTRA_KEYS", "LOOKAHEAD", "SALT",
};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &decoder_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int done = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    for (int kind = 0; done == 0 && kind < KINDS; kind++) {
        done = PyModule_AddIntConstant(module, KIND_NAMES[kind], kind);
    }
    return done;
}

static PyMethodDef module_methods[] = {
    {"token_bytes", token_bytes, METH_O,
     "Tokens, as the msgpack array that they are, as native 32-bit numbers; pairs one number after the other. None when\n"
     "there is a token that does not fit, or that is no number."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kvwire._decode_ext",
    .m_doc = "Reads payloads into neutral events (kvwire/_decode.py).",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__decode_ext(void)
{
    return PyModuleDef_Init(&module_def);
}
