// abi_file.c: where metadata lives in an artifact.
//
// In: PTX text and an AbiMeta, or a whole file. Out: the text with its metadata, or the metadata
// found and the code it came with.
//
// PTX carries it as the last lines of the text, which assemblers skip as comments:
//
//     //attn:YXR0bm1ldGEBAAAA...        (base64, 72 characters a line, the last one shorter)
//
// From the first such line to the end of the file there is nothing else, the last line ends with a
// newline, and the metadata holds length and checksum of all text before it; so no byte of the file
// can change unseen.
//
// ELF files carry it in the section .attn, at its start. In an object file, and in a code object for
// AMD devices, it holds the length of the file and a checksum of all of it, where the three fields of
// sizes and sums count as zeros; abi_seal writes them. Linking rewrites the rest of the file, so that
// in a shared object of the host's it vouches for itself only.
#include "abi.h"
#include <stdlib.h>
#include <string.h>

static const char MARK[] = "//attn:";
enum { MARK_N = 7, LINE = 72 };
static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// ---- PTX

// Appends base64 of `in` as marked lines; returns the end. Room: ptx_room.
static char *encode(char *out, const uint8_t *in, size_t n) {
    size_t column = 0;
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t v =
            (uint32_t)in[i] << 16 | (left > 1 ? in[i + 1] << 8 : 0) | (left > 2 ? in[i + 2] : 0);
        if (column == 0) out = (char *)memcpy(out, MARK, MARK_N) + MARK_N;
        *out++ = DIGITS[v >> 18];
        *out++ = DIGITS[v >> 12 & 63];
        *out++ = left > 1 ? DIGITS[v >> 6 & 63] : '=';
        *out++ = left > 2 ? DIGITS[v & 63] : '=';
        column += 4;
        if (column == LINE || left <= 3) {
            *out++ = '\n';
            column = 0;
        }
    }
    return out;
}

static size_t ptx_room(size_t n) {
    return (n / 3 + 1) * 4 + (n / (LINE / 4 * 3) + 1) * (MARK_N + 1);
}

const char *abi_ptx(const char *ptx, size_t n, AbiMeta *m, char **out, size_t *out_n) {
    bool newline = n > 0 && ptx[n - 1] != '\n'; // the first mark starts a line
    uint8_t *meta;
    size_t meta_n;
    if (memmem(ptx, n, MARK, MARK_N)) return "the PTX text already holds metadata";
    char *code = malloc(n + 2);
    if (!code) return "out of memory";
    memcpy(code, ptx, n);
    if (newline) code[n++] = '\n';
    m->code_bytes = n;
    m->code_sum = abi_fnv(code, n);
    const char *why = abi_write(m, &meta, &meta_n);
    if (why) {
        free(code);
        return why;
    }
    char *all = realloc(code, n + ptx_room(meta_n) + 1);
    if (all) {
        char *end = encode(all + n, meta, meta_n);
        *end = 0;
        *out = all;
        *out_n = (size_t)(end - all);
    } else {
        free(code);
    }
    free(meta);
    return all ? NULL : "out of memory";
}

static int digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Four characters to up to three bytes; 0 when they are not what encode writes.
static size_t decode4(const char *s, uint8_t *out) {
    int a = digit(s[0]), b = digit(s[1]), c = digit(s[2]), d = digit(s[3]);
    if (a < 0 || b < 0) return 0;
    if (s[2] == '=' && s[3] == '=') {
        out[0] = (uint8_t)(a << 2 | b >> 4);
        return b & 15 ? 0 : 1;
    }
    if (c < 0) return 0;
    out[0] = (uint8_t)(a << 2 | b >> 4);
    out[1] = (uint8_t)(b << 4 | c >> 2);
    if (s[3] == '=') return c & 3 ? 0 : 2;
    if (d < 0) return 0;
    out[2] = (uint8_t)(c << 6 | d);
    return 3;
}

// The marked lines [s, end) to bytes; false when anything else is among them.
static bool decode(const char *s, const char *end, uint8_t *out, size_t *n) {
    *n = 0;
    while (s < end) {
        const char *eol = memchr(s, '\n', (size_t)(end - s));
        if (!eol || eol - s <= MARK_N || memcmp(s, MARK, MARK_N) != 0) return false;
        size_t width = (size_t)(eol - s) - MARK_N;
        if (width % 4 || width > LINE || (width < LINE && eol + 1 != end)) return false;
        for (s += MARK_N; s < eol; s += 4) {
            size_t got = decode4(s, out + *n);
            if (got == 0 || (got < 3 && s + 5 != end)) return false;
            *n += got;
        }
        s = eol + 1;
    }
    return true;
}

static const char *find_ptx(AbiMeta *m, const char *text, size_t n, const char *mark) {
    static const char damaged[] = "the metadata lines are damaged";
    size_t code_n = (size_t)(mark - text), meta_n;
    if (n - code_n > 2 * (size_t)ABI_MAX_BYTES || (code_n && mark[-1] != '\n')) return damaged;
    uint8_t *meta = malloc(n - code_n + 3);
    if (!meta) return "out of memory";
    const char *why = decode(mark, text + n, meta, &meta_n) ? abi_read(m, meta, meta_n) : damaged;
    free(meta);
    if (why) return why;
    if (m->code != ABI_CODE_PTX)
        why = "the metadata in this text is not about PTX";
    else if (m->code_bytes != code_n || m->code_sum != abi_fnv(text, code_n))
        why = "the checksum does not match: the artifact is damaged";
    if (why) abi_free(m);
    return why;
}

// ---- ELF, 64 bits, little-endian: what every target here is

static uint64_t le(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

typedef struct Range {
    uint64_t at, n;
} Range;

static bool inside(Range r, size_t n) { return r.at <= n && r.n <= n - r.at; }

static Range section(const uint8_t *header) {
    return (Range){le(header + 24, 8), le(header + 32, 8)};
}

// The bytes of the named section; false when there is none or the file lies about itself.
static bool elf_section(const uint8_t *f, size_t n, const char *name, Range *out) {
    enum { EHDR = 64, SHDR = 64, SHT_NOBITS = 8 };
    if (n < EHDR || f[4] != 2 || f[5] != 1) return false;
    uint64_t count = le(f + 60, 2), names = le(f + 62, 2);
    Range table = {le(f + 40, 8), count * SHDR};
    if (le(f + 58, 2) != SHDR || names >= count || !inside(table, n)) return false;
    Range strings = section(f + table.at + names * SHDR);
    size_t len = strlen(name) + 1; // with its NUL
    if (!inside(strings, n)) return false;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *h = f + table.at + i * SHDR;
        uint64_t at = le(h, 4);
        *out = section(h);
        if (le(h + 4, 4) == SHT_NOBITS || !inside(*out, n) || at > strings.n ||
            len > strings.n - at)
            continue;
        if (memcmp(f + strings.at + at, name, len) == 0) return true;
    }
    return false;
}

static const char *elf_metadata(const uint8_t *f, size_t n, Range *r) {
    if (!elf_section(f, n, ABI_ELF_SECTION, r)) return "the ELF file holds no metadata of attnc";
    if (r->n < ABI_SUM_END) return "the metadata is cut short";
    uint64_t size =
        le(f + r->at + 12, 4); // the section may be padded, or hold those of further objects
    if (size < r->n) r->n = size;
    return r->n < ABI_SUM_END ? "the metadata is cut short" : NULL;
}

// Of the file whose metadata starts at `at`: what stands between the fields that are written last,
// one half after the other through a bijection, so that any one damaged byte always shows.
static uint64_t elf_sum(const uint8_t *f, size_t n, uint64_t at) {
    uint64_t after = at + ABI_SUM_END;
    return abi_fnv(f, at + ABI_SUM_AT) * 1099511628211u + abi_fnv(f + after, n - after);
}

const char *abi_seal(void *file, size_t n) {
    Range r;
    uint8_t *f = file;
    const char *why = elf_metadata(f, n, &r);
    if (!why) abi_set_code(f + r.at, r.n, n, elf_sum(f, n, r.at));
    return why;
}

// Whether a linker made the file, which may be of any length: it has another type than an object
// and segments to load, which an object whose type was damaged does not.
static bool was_linked(const uint8_t *f) {
    enum { ET_REL = 1 };
    return le(f + 16, 2) != ET_REL && le(f + 56, 2) != 0;
}

static const char *find_elf(AbiMeta *m, const uint8_t *f, size_t n) {
    Range r;
    const char *why = elf_metadata(f, n, &r);
    if (!why) why = abi_read(m, f + r.at, r.n);
    // An object that was sealed is as it was made, a code object was sealed when it was linked.
    if (why || m->code_bytes == 0 || (m->code != ABI_CODE_HSACO && was_linked(f))) return why;
    if (m->code_bytes == n && m->code_sum == elf_sum(f, n, r.at)) return NULL;
    abi_free(m);
    return "the checksum does not match: the file is damaged";
}

const char *abi_find(AbiMeta *m, const void *file, size_t n, const void **code, size_t *code_n) {
    *m = (AbiMeta){0};
    *code = file;
    *code_n = n;
    if (n >= 4 && memcmp(file, "\177ELF", 4) == 0) return find_elf(m, file, n);
    if (n >= 8 && memcmp(file, "attnmeta", 8) == 0) {
        *code_n = 0;
        return abi_read(m, file, n);
    }
    const char *mark = n ? memmem(file, n, MARK, MARK_N) : NULL;
    if (!mark) return "this is no artifact of attnc: it holds no metadata";
    *code_n = (size_t)(mark - (const char *)file);
    return find_ptx(m, file, n, mark);
}
