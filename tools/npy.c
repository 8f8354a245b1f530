// npy.c: see npy.h. The header is a Python dict literal of three keys in any order:
//
//     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//
// read by a scanner that accepts just that. Every length is checked against the bytes that are
// there before it is used.
#include "npy.h"
#include "files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *descr;
    int bytes;
} types[] = {
#define NPY_TYPE(e, descr, bytes) {descr, bytes},
#include "npy_types.def"
#undef NPY_TYPE
};

typedef struct Scan {
    const char *s, *end;
} Scan;

static void blank(Scan *c) {
    while (c->s < c->end && (*c->s == ' ' || *c->s == '\t' || *c->s == '\n')) c->s++;
}

static bool eat(Scan *c, char want) {
    blank(c);
    if (c->s == c->end || *c->s != want) return false;
    c->s++;
    return true;
}

static bool eat_word(Scan *c, const char *word) {
    size_t n = strlen(word);
    blank(c);
    if ((size_t)(c->end - c->s) < n || memcmp(c->s, word, n) != 0) return false;
    c->s += n;
    return true;
}

static bool quoted(Scan *c, char *out, size_t cap) {
    size_t n = 0;
    char q;
    blank(c);
    if (c->s == c->end || (*c->s != '\'' && *c->s != '"')) return false;
    q = *c->s++;
    while (c->s < c->end && *c->s != q && n + 1 < cap) out[n++] = *c->s++;
    out[n] = 0;
    return eat(c, q);
}

static bool number(Scan *c, int64_t *out) {
    int64_t v = 0;
    const char *first;
    blank(c);
    for (first = c->s; c->s < c->end && *c->s >= '0' && *c->s <= '9'; c->s++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *c->s - '0', &v))
            return false;
    if (c->s == first) return false;
    if (c->s < c->end && *c->s == 'L') c->s++; // Python 2 wrote longs so
    *out = v;
    return true;
}

static const char *shape(Scan *c, Npy *a) {
    if (!eat(c, '(')) return "the shape is no tuple";
    while (!eat(c, ')')) {
        if (a->rank == TENSOR_MAX_RANK) return "more than 8 dimensions";
        if (!number(c, &a->dim[a->rank++])) return "the shape holds something that is no size";
        if (!eat(c, ',') && !(c->s < c->end && *c->s == ')')) return "the shape is not closed";
    }
    return NULL;
}

static const char not_one[] =
    "an element type that is not one of f2 f4 f8 i1 i4 i8 u1 b1, or of 8 bits";

static const char *element(const char *descr, Npy *a) {
    const bool little = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    char order = descr[0];
    if (order == 0 || !strchr("<>|=", order)) return not_one;
    a->swapped = order == (little ? '>' : '<');
    for (int t = 0; t < NPY_TYPE_COUNT; t++)
        if (strcmp(descr + 1, types[t].descr) == 0) {
            a->type = (NpyType)t;
            return NULL;
        }
    return not_one;
}

static const char *header(Scan c, Npy *a) {
    enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
    int seen = 0;
    char word[32];
    const char *bad = NULL;
    if (!eat(&c, '{')) return "the header is no dict";
    while (!eat(&c, '}')) {
        int key;
        if (!quoted(&c, word, sizeof word) || !eat(&c, ':')) return "the header is not readable";
        if (strcmp(word, "descr") == 0) {
            key = DESCR;
            bad = quoted(&c, word, sizeof word) ? element(word, a) : "a structured element type";
        } else if (strcmp(word, "fortran_order") == 0) {
            key = ORDER;
            a->fortran = eat_word(&c, "True");
            if (!a->fortran && !eat_word(&c, "False"))
                bad = "fortran_order is neither True nor False";
        } else if (strcmp(word, "shape") == 0) {
            key = SHAPE;
            bad = seen & SHAPE ? "the header gives a key twice" : shape(&c, a);
        } else
            return "the header holds an unknown key";
        if (bad) return bad;
        if (seen & key) return "the header gives a key twice";
        seen |= key;
        if (!eat(&c, ',') && !(c.s < c.end && *c.s == '}')) return "the header is not closed";
    }
    return seen == ALL ? NULL : "the header lacks descr, fortran_order or shape";
}

bool npy_parse(const void *bytes, size_t n, Npy *out, const char **error) {
    const uint8_t *p = bytes;
    Npy a = {.count = 1};
    size_t at = 10, len;
    if (n < 12 || memcmp(p, "\x93NUMPY", 6) != 0) return *error = "not a .npy file", false;
    if (p[6] < 1 || p[6] > 3) return *error = "a version of the format that is not known", false;
    len = p[8] | (size_t)p[9] << 8;
    if (p[6] > 1) {
        len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
        at = 12;
    }
    if (len > n - at) return *error = "the header is cut off", false;
    *error = header((Scan){(const char *)p + at, (const char *)p + at + len}, &a);
    if (*error) return false;
    size_t room = (n - at - len) / (size_t)types[a.type].bytes;
    for (int i = 0; i < a.rank; i++)
        if (__builtin_mul_overflow(a.count, a.dim[i], &a.count))
            return *error = "the shape is too large", false;
    if ((uint64_t)a.count > room) return *error = "the data is cut off", false;
    a.data = p + at + len;
    *out = a;
    return true;
}

// Where the row-major element i stands in the file.
static int64_t place(const Npy *a, int64_t i) {
    int64_t at = 0, index[TENSOR_MAX_RANK];
    if (!a->fortran || a->rank < 2) return i;
    for (int d = a->rank - 1; d >= 0; d--) {
        index[d] = i % a->dim[d];
        i /= a->dim[d];
    }
    for (int d = a->rank - 1; d >= 0; d--) at = at * a->dim[d] + index[d];
    return at;
}

double npy_get(const Npy *a, int64_t i) {
    union {
        uint8_t b[8];
        uint16_t h;
        float f;
        double d;
        int32_t i;
        int64_t l;
    } u = {{0}};
    int n = types[a->type].bytes;
    const uint8_t *p = a->data + place(a, i) * n;
    for (int k = 0; k < n; k++) u.b[k] = p[a->swapped ? n - 1 - k : k];
    switch (a->type) {
    case NPY_F2: return half_to_f32(u.h);
    case NPY_F4: return u.f;
    case NPY_F8: return u.d;
    case NPY_I4: return u.i;
    case NPY_I8: return (double)u.l;
    case NPY_B1: return u.b[0] != 0;
    case NPY_I1: return (int8_t)u.b[0];
    case NPY_U1:
    case NPY_V1:
    case NPY_F1: return u.b[0];
    case NPY_TYPE_COUNT: break;
    }
    return 0;
}

Status npy_read(const char *path, Npy *out) {
    void *bytes;
    size_t n;
    const char *error;
    Status s = file_read(path, &bytes, &n);
    if (s != STATUS_DONE) return s;
    if (!npy_parse(bytes, n, out, &error)) {
        free(bytes);
        return cmd_fail(STATUS_INPUT, "%s: %s", path, error);
    }
    out->owner = bytes;
    return STATUS_DONE;
}

void npy_free(Npy *a) {
    free(a->owner);
    *a = (Npy){0};
}

Status npy_to_tensor(const Npy *a, Dtype t, const char *what, Tensor *out) {
    bool plain = !a->swapped && !a->fortran &&
                 ((a->type == NPY_F4 && t == DT_F32) || (a->type == NPY_I4 && t == DT_I32) ||
                  (a->type == NPY_F2 && t == DT_F16) || (a->type == NPY_I1 && t == DT_I8));
    bool bits = a->type == NPY_U1 || a->type == NPY_V1 || a->type == NPY_F1,
         code = bits && (t == DT_E4M3 || t == DT_E5M2);
    if (bits && !code && a->type != NPY_U1)
        return cmd_fail(STATUS_INPUT,
                        "%s is %s: its file has elements of 8 bits that only e4m3 and e5m2 take",
                        what, dtype_name(t));
    if (!tensor_alloc(out, t, a->rank, a->dim))
        return cmd_fail(STATUS_SYSTEM, "%s: out of memory", what);
    if (plain) {
        memcpy(out->data, a->data, (size_t)a->count * (size_t)dtype_bytes(t));
        return STATUS_DONE;
    }
    for (int64_t i = 0; i < a->count; i++) {
        double v = npy_get(a, i);
        if (code) {
            ((uint8_t *)out->data)[i] = (uint8_t)v;
            continue;
        }
        if (t == DT_I32 && !(v >= INT32_MIN && v <= INT32_MAX && v == (int32_t)v)) {
            tensor_free(out);
            return cmd_fail(STATUS_INPUT,
                            "%s is i32: element %lld of its file, %g, is no 32-bit integer", what,
                            (long long)i, v);
        }
        tensor_set(out, i, v);
    }
    return STATUS_DONE;
}

void *npy_bytes(const Tensor *t, size_t *n) {
    char dict[512], *file;
    size_t used =
        (size_t)snprintf(dict, sizeof dict, "{'descr': '%cf4', 'fortran_order': False, 'shape': (",
                         __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>');
    for (int i = 0; i < t->rank; i++)
        used += (size_t)snprintf(dict + used, sizeof dict - used, "%lld,%s", (long long)t->dim[i],
                                 i + 1 < t->rank ? " " : "");
    used += (size_t)snprintf(dict + used, sizeof dict - used, "), }");
    size_t head = (10 + used + 1 + 63) / 64 * 64; // data aligned to 64, as NumPy writes it
    file = malloc(head + (size_t)t->count * 4);
    if (!file) return NULL;
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (char)((head - 10) & 255);
    file[9] = (char)((head - 10) >> 8);
    memset(file + 10, ' ', head - 10);
    memcpy(file + 10, dict, used);
    file[head - 1] = '\n';
    for (int64_t i = 0; i < t->count; i++) {
        float f = (float)tensor_get(t, i);
        memcpy(file + head + (size_t)i * 4, &f, 4);
    }
    *n = head + (size_t)t->count * 4;
    return file;
}
