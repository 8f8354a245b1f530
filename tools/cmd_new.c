// cmd_new.c: `attnc new NAME`: a variant to begin with, with comments, and a test of it: the files of
// tools/template, under another name.
#include "cmd.h"
#include "files.h"
#include "frontend/describe.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char template_name[] = "my_variant";
static const struct {
    const char *path, *text;
} templates[] = {
#define TEMPLATE(path, text) {path, text},
#include "template.inc"
#undef TEMPLATE
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

// Why it is no name for a variant; NULL: it is one.
static const char *wrong_name(Arena *a, const char *name) {
    size_t n = strlen(name);
    if (strchr(name, '/') || cmd_has_extension(name, ".attn"))
        return "a name without folder and extension: NAME.attn is written here";
    if (!isalpha((unsigned char)name[0]) && name[0] != '_')
        return "a name that begins with a letter or _";
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_') return "a name of letters, digits and _";
    if (n > AST_MAX_NAME) return arena_printf(a, "a name of at most %d characters", AST_MAX_NAME);
    FeWords words = fe_words(a);
    int next = 0;
    for (const FeWord *w; (w = fe_word(&words, name, &next));)
        if (w->kind == FE_KEYWORD) return "a name that is no reserved word";
    return NULL;
}

// The text with the template's name replaced.
static const char *named(Arena *a, const char *s, const char *name, size_t *n) {
    Text t = text_new(a);
    for (const char *at; (at = strstr(s, template_name)); s = at + strlen(template_name)) {
        text_putn(&t, s, (size_t)(at - s));
        text_puts(&t, name);
    }
    text_puts(&t, s);
    *n = t.n;
    return t.s;
}

static Status write_all(Arena *a, const char *name) {
    FileOut files[TEMPLATES];
    struct stat st;
    for (int i = 0; i < TEMPLATES; i++) {
        size_t n;
        files[i] = (FileOut){.path = named(a, templates[i].path, name, &n)};
        files[i].data = named(a, templates[i].text, name, &files[i].n);
        if (lstat(files[i].path, &st) == 0)
            return cmd_fail(STATUS_INPUT, "%s is there already: nothing was written",
                            files[i].path);
    }
    Status s = files_write(files, TEMPLATES);
    if (s != STATUS_DONE) return s;
    printf("%s.attn\n    attnc check %s.attn\ntest_%s.py\n    python3 test_%s.py\n", name, name,
           name, name);
    return s;
}

Status cmd_new(const Options *o) {
    const char *name = o->files.data[0];
    Arena *a = arena_new();
    const char *wrong = wrong_name(a, name);
    Status s = wrong ? cmd_fail(STATUS_USAGE, "'%s': `attnc new` takes %s", name, wrong)
                     : write_all(a, name);
    arena_free(a);
    return s;
}
