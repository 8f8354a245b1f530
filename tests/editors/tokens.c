// tokens.c: what the compiler's lexer and parser say of source files. The grammars of the editors are held to it.
//
//     tokens FILE...      of each: `file ERRORS MESSAGE`, with the first error of lexer and parser; then its tokens, `KIND START END`, in bytes.
//                         KIND is keyword, name, integer, float, operator or error. Comments are what lies between tokens.
#include "frontend/gram.h"
#include "frontend/parse.h"
#include "ir/read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ast_scan(AST_YYSTYPE *value, Span *span, void *scanner);
int ast_yylex_init_extra(Parse *p, void **scanner);
int ast_yylex_destroy(void *scanner);
void *ast_yy_scan_bytes(const char *bytes, int n, void *scanner);

static const char *kind_of(int token) {
    if (token == AST_YYerror) return "error";
    if (token >= IMPORT && token <= RETURN) return "keyword";
    if (token == NAME || token == SHARE) return "name";
    if (token == INT) return "integer";
    if (token == FLOAT) return "float";
    return "operator";
}

// A byte order mark is skipped, as ast_parse does. A line from '#' on is reported and skipped by the lexer: here it is an error, too.
static void print_tokens(Arena *a, Diags *d, uint16_t file) {
    const Source *s = &d->files.data[file];
    uint32_t skip = s->n >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    Parse p = {.arena = a, .diags = d, .file = file, .text = s->text, .n = s->n, .offset = skip};
    void *scanner;
    if (ast_yylex_init_extra(&p, &scanner) ||
        !ast_yy_scan_bytes(s->text + skip, (int)(s->n - skip), scanner))
        abort();
    AST_YYSTYPE value;
    Span at;
    int token;
    do {
        const Diag *before = d->last;
        token = ast_scan(&value, &at, scanner);
        if (d->last != before && token != AST_YYerror && s->text[d->last->span.start] == '#') {
            uint32_t start = d->last->span.start;
            printf("error %u %u\n", start, start + (uint32_t)strcspn(s->text + start, "\n"));
        }
        if (token) printf("%s %u %u\n", kind_of(token), at.start, at.end);
    } while (token);
    ast_yylex_destroy(scanner);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *text;
        size_t n;
        const char *why = read_file(argv[i], AST_MAX_BYTES, &text, &n);
        if (why) return fprintf(stderr, "%s: %s\n", argv[i], why), 1;
        Arena *a = arena_new();
        Diags d = diag_list(a);
        uint16_t file = diag_add_file(&d, argv[i], text, n);
        ast_parse(a, &d, file, NULL);
        printf("file %d %s\n", d.errors, d.first ? d.first->message : "");
        print_tokens(a, &d, file);
        arena_free(a);
        free(text);
    }
}
