// options.h: the command line, parsed but for what only a source file can tell (names of -D, of
// sizes and of tensors).
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "compile.h"
#include "status.h"

typedef enum Verb {
#define VERB(e, name, fn, synopsis, what) VERB_##e,
#include "verbs.def"
#undef VERB
    VERB_COUNT
} Verb;

typedef struct NameValue {
    const char *name, *value;
} NameValue;
typedef VEC(NameValue) NameValues;

typedef enum Emit {
    EMIT_NONE,
    EMIT_AST,
    EMIT_ROW,
    EMIT_TILE,
    EMIT_SCHEDULE,
    EMIT_LLVM,
    EMIT_ASM
} Emit;
typedef enum Format { FORMAT_TEXT, FORMAT_MATHML, FORMAT_TEX, FORMAT_JSON } Format; // of explain
typedef enum DeviceKind { DEVICE_CPU, DEVICE_CUDA, DEVICE_HIP } DeviceKind;

typedef struct Options {
    Verb verb;
    VEC(const char *) files;
    const char *output; // NULL: none asked for
    const char *json;   // of bench; NULL: none asked for
    Emit emit;
    Format format;
    const char *pass; // NULL: none by itself
    bool has_target, has_dtype, has_level;
    TargetId target;
    Dtype dtype;
    bool tf32; // products of f32, the dtype then, by tf32
    bool has_kv;
    Dtype kv; // of k and v, where has_kv
    BatchLayout layout;
    int page;          // of paged:N; 0: any
    const char *entry; // NULL: all, or the only one
    NameValues defines, in, out;
    VEC(const char *) include;
    VEC(const char *) shapes; // each as written: "B=1,H=8"
    unsigned phases;          // COMPILE_*; 0: not given
    bool deterministic;
    bool invariant;
    int level;
    Knobs schedule; // that was asked for
    bool no_cache, debug, dry, check, help, version;
    DeviceKind device;
    int ordinal; // of the device
    uint64_t seed;
    double deviation; // of scores where q and k are drawn; 0: not given
    int repeat;       // 0: not given
    int parts;        // of the keys; 0: not given
    int budget;       // seconds; 0: not given
    int batch, head;  // of the mask that is drawn
} Options;

// Prints what is wrong. STATUS_INPUT for what this version does not support, STATUS_USAGE for the
// rest.
Status options_parse(Options *o, Arena *a, int argc, char **argv);
void options_help(Verb v);
void options_help_on(const char *name); // the option of this long name, in a line
// A verb's name ("compile" where none is written), and what it does.
const char *options_verb(Verb v, const char **what);
// One `NAME=INTEGER` of a --shape at *s; moves *s past it and a comma. NULL: none left; *good is
// false when it does not read.
const char *options_size(const char **s, Arena *a, int64_t *value, bool *good);

#endif
