// compile.h: the compiler as a library: source to typed AST, row programs and their streaming
// forms, recurrence programs and their chunked forms, tile programs, code. Each step needs the one
// before it and says false after a mistake, which is then in `diags`. Nothing here prints or exits.
// Used by the command's verbs, by libattnc and by the tests.
#ifndef TOOLS_COMPILE_H
#define TOOLS_COMPILE_H

#include "codegen/codegen.h"
#include "frontend/frontend.h"
#include "passes/passes.h"

// Phases; PART: a range of keys leaves a state, and states become results.
enum { COMPILE_FWD = 1, COMPILE_BWD = 2, COMPILE_PART = 4, COMPILE_PIECE = 8 };

typedef struct CompileOptions {
    FeOptions source;  // stdlib and read are filled in by compile_open
    const char *entry; // only this variant; NULL: all
    TargetId target;
    Dtype dtype;
    bool tf32;   // products of f32
    bool has_kv; // k and v have a type of their own
    Dtype kv;    // theirs; 0: as q
    BatchLayout batch;
    int page;           // of BATCH_PAGED: keys of a page; 0: any
    unsigned phases;    // COMPILE_*; 0: the forward
    bool deterministic; // of the backward
    bool invariant;     // of sequences of a batch
    int level;
    bool checks;
    Knobs schedule;    // of every variant, in place of the compiler's own
    const char *cache; // where tuned schedules are (cache.h); NULL: they are not looked for
} CompileOptions;

typedef struct Compile {
    Arena *arena;
    Diags diags;
    CompileOptions options;
    Module *module;
    Variants variants; // those chosen, in the order of the source
    int derived;       // how many of them are
    VEC(RowProgram *) rows;
    VEC(Stream *) streams;     // of the rows
    VEC(Backward *) backwards; // of the rows, where the backward is one of the phases
    VEC(RecProgram *) recurrences;
    VEC(Chunk *) chunks;          // of the recurrences
    VEC(ChunkBack *) chunk_backs; // likewise, where the backward is one of the phases
    VEC(TileProgram *) tiles;
} Compile;

// Options as text; false for a value that is none. A layout is dense, ragged, paged, or paged:N with
// pages of N keys (*page; else 0); phases are fwd, bwd and part, or several: fwd,bwd.
bool compile_read_dtype(const char *text, Dtype *dtype, bool *tf32);
bool compile_read_kv(const char *text, Dtype *kv);
bool compile_read_layout(const char *text, BatchLayout *batch, int *page);
bool compile_read_phases(const char *text, unsigned *phases);

// As source.path: the source is read from stdin.
extern const char compile_stdin[];

// Reads and checks the source. The imported std modules are inside the compiler. FE_USAGE also when
// there is no such entry. compile_close is due whatever comes back.
FeStatus compile_open(Compile *c, const CompileOptions *o);
void compile_close(Compile *c);
bool compile_streams(Compile *c);   // rows and their streaming forms; chunked forms of recurrences
bool compile_algorithm(Compile *c); // tiles before the passes (--emit=tile)
bool compile_tiles(Compile *c);     // tiles as the target runs them
bool compile_emit(Compile *c, CgForm form, void **out,
                  size_t *n);        // of all tiles; *out is malloc'ed
CgForm compile_artifact(TargetId t); // the form that carries metadata: PTX's text, else an ELF file
CgJit *compile_jit(Compile *c);      // NULL after a mistake

#endif
