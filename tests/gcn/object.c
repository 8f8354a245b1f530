// object.c: a linked code object into memory: segments, kernel descriptors, the metadata note.
#include "tests/gcn/note.h"
#include "tests/gcn/wave.h"
#include <elf.h>
#include <stdio.h>

enum { EM_GCN = 224, R_GCN_RELATIVE64 = 13, NT_GCN_METADATA = 32, MACH = 0xff };

typedef struct Object {
    GcnCode *c;
    const uint8_t *bytes;
    size_t n;
    const Elf64_Ehdr *head;
    GcnError *e;
} Object;

static bool bad(const Object *o, const char *why) {
    snprintf(o->e->text, sizeof o->e->text, "the code object %s", why);
    return false;
}

static const void *part(const Object *o, uint64_t at, uint64_t bytes) {
    return at <= o->n && bytes <= o->n - at ? o->bytes + at : NULL;
}

static bool header(Object *o) {
    static const struct {
        uint32_t mach;
        const char *name;
        int lanes;
    } targets[] = {{0x3f, "gfx90a", 64}, {0x4c, "gfx942", 64}, {0x41, "gfx1100", 32}};
    o->head = part(o, 0, sizeof *o->head);
    if (!o->head || memcmp(o->head->e_ident, ELFMAG, SELFMAG) != 0 ||
        o->head->e_ident[EI_CLASS] != ELFCLASS64 || o->head->e_machine != EM_GCN)
        return bad(o, "is no 64-bit ELF file for AMD GPUs");
    if (o->head->e_type != ET_DYN) return bad(o, "is not linked");
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        if ((o->head->e_flags & MACH) != targets[i].mach) continue;
        o->c->target = targets[i].name;
        o->c->lanes = targets[i].lanes;
        o->c->gfx11 = targets[i].lanes == 32;
        o->c->gfx90a = targets[i].mach == 0x3f;
        return true;
    }
    return bad(o, "is for a processor that is not modelled");
}

static bool segments(Object *o) {
    const Elf64_Phdr *ph = part(o, o->head->e_phoff, (uint64_t)o->head->e_phnum * sizeof *ph);
    uint64_t top = 0;
    if (!ph) return bad(o, "is cut off");
    for (int i = 0; i < o->head->e_phnum; i++)
        if (ph[i].p_type == PT_LOAD && ph[i].p_vaddr + ph[i].p_memsz > top)
            top = ph[i].p_vaddr + ph[i].p_memsz;
    if (top > UINT32_MAX) return bad(o, "is too large");
    o->c->image = arena_alloc(o->c->arena, top + 1);
    o->c->image_bytes = top;
    for (int i = 0; i < o->head->e_phnum; i++) {
        const void *from = part(o, ph[i].p_offset, ph[i].p_filesz);
        if (ph[i].p_type != PT_LOAD) continue;
        if (!from || ph[i].p_filesz > ph[i].p_memsz) return bad(o, "is cut off");
        memcpy(o->c->image + ph[i].p_vaddr, from, ph[i].p_filesz);
        if (!(ph[i].p_flags & PF_X)) continue;
        if (o->c->text_bytes) return bad(o, "has several segments of code");
        o->c->text = (uint32_t)ph[i].p_vaddr;
        o->c->text_bytes = (uint32_t)ph[i].p_filesz;
    }
    return o->c->text_bytes || bad(o, "has no code");
}

static bool relocate(Object *o, const Elf64_Shdr *s) {
    const Elf64_Rela *r = part(o, s->sh_offset, s->sh_size);
    if (!r) return bad(o, "is cut off");
    for (size_t i = 0; i < s->sh_size / sizeof *r; i++) {
        uint64_t value = (uint64_t)(uintptr_t)o->c->image + (uint64_t)r[i].r_addend;
        if (ELF64_R_TYPE(r[i].r_info) != R_GCN_RELATIVE64 ||
            r[i].r_offset + sizeof value > o->c->image_bytes)
            return bad(o, "has a relocation that is not modelled");
        memcpy(o->c->image + r[i].r_offset, &value, sizeof value);
    }
    return true;
}

// ---- kernels

static bool descriptor(Object *o, const Elf64_Sym *s, struct GcnKernel *k) {
    if (s->st_value + 64 > o->c->image_bytes) return bad(o, "has a kernel outside its segments");
    const uint8_t *d = o->c->image + s->st_value;
    int64_t entry;
    memcpy(&k->lds, d, 4);
    memcpy(&k->scratch, d + 4, 4);
    memcpy(&k->kernarg, d + 8, 4);
    memcpy(&entry, d + 16, 8);
    memcpy(&k->rsrc1, d + 48, 4);
    memcpy(&k->rsrc2, d + 52, 4);
    memcpy(&k->props, d + 56, 2);
    memcpy(&k->preload, d + 58, 2);
    k->entry = (uint32_t)((int64_t)s->st_value + entry);
    return true;
}

static bool symbols(Object *o, const Elf64_Shdr *s, const Elf64_Shdr *names) {
    const Elf64_Sym *sym = part(o, s->sh_offset, s->sh_size);
    const char *name = part(o, names->sh_offset, names->sh_size);
    if (!sym || !name) return bad(o, "is cut off");
    o->c->kernels = ARENA_ARRAY(o->c->arena, struct GcnKernel, s->sh_size / sizeof *sym + 1);
    for (size_t i = 0; i < s->sh_size / sizeof *sym; i++) {
        if (sym[i].st_name >= names->sh_size) return bad(o, "has a name outside its names");
        const char *text = name + sym[i].st_name;
        size_t n = strnlen(text, names->sh_size - sym[i].st_name);
        if (n < 4 || memcmp(text + n - 3, ".kd", 3) != 0) continue;
        struct GcnKernel *k = &o->c->kernels[o->c->nkernels++];
        k->code = o->c;
        k->name = arena_strndup(o->c->arena, text, n - 3);
        if (!descriptor(o, &sym[i], k)) return false;
    }
    return true;
}

static void arguments(Object *o, Note at, struct GcnKernel *k) {
    NoteItem list = note_next(&at);
    if (list.kind != NOTE_LIST) return;
    k->arg = ARENA_ARRAY(o->c->arena, GcnArg, list.value + 1);
    for (int64_t i = 0; i < list.value; i++, note_skip(&at)) {
        Note kind;
        NoteItem x = {.kind = NOTE_BAD};
        if (note_find(at, ".value_kind", &kind)) x = note_next(&kind);
        if (x.kind == NOTE_TEXT && x.n > 7 && memcmp(x.text, "hidden_", 7) == 0) continue;
        k->arg[k->nargs++] =
            (GcnArg){(uint32_t)note_int(at, ".offset", 0), (uint32_t)note_int(at, ".size", 0)};
    }
}

static void describe(Object *o, Note at, struct GcnKernel *k) {
    Note args;
    k->vgprs = (uint32_t)note_int(at, ".vgpr_count", 0);
    k->agprs = (uint32_t)note_int(at, ".agpr_count", 0);
    k->sgprs = (uint32_t)note_int(at, ".sgpr_count", 0);
    k->threads = (uint32_t)note_int(at, ".max_flat_workgroup_size", 0);
    if (note_find(at, ".args", &args)) arguments(o, args, k);
}

static bool metadata(Object *o, const Elf64_Shdr *s) {
    const uint8_t *p = part(o, s->sh_offset, s->sh_size);
    Elf64_Nhdr h;
    if (!p || s->sh_size < sizeof h) return bad(o, "is cut off");
    memcpy(&h, p, sizeof h);
    size_t at = sizeof h + (h.n_namesz + 3u) / 4 * 4;
    if (h.n_type != NT_GCN_METADATA) return true;
    if (at + h.n_descsz > s->sh_size) return bad(o, "is cut off");
    Note note = {p + at, p + at + h.n_descsz}, list;
    if (!note_find(note, "amdhsa.kernels", &list)) return bad(o, "says nothing of its kernels");
    NoteItem kernels = note_next(&list);
    for (int64_t i = 0; kernels.kind == NOTE_LIST && i < kernels.value; i++, note_skip(&list)) {
        Note name;
        if (!note_find(list, ".name", &name)) continue;
        NoteItem x = note_next(&name);
        for (int k = 0; k < o->c->nkernels; k++)
            if (x.n == strlen(o->c->kernels[k].name) &&
                memcmp(x.text, o->c->kernels[k].name, x.n) == 0)
                describe(o, list, &o->c->kernels[k]);
    }
    return true;
}

static bool sections(Object *o) {
    int n = o->head->e_shnum;
    const Elf64_Shdr *sh = part(o, o->head->e_shoff, (uint64_t)n * sizeof *sh);
    if (!sh) return bad(o, "is cut off");
    for (int i = 0; i < n; i++) {
        if (sh[i].sh_type == SHT_RELA && !relocate(o, &sh[i])) return false;
        if (sh[i].sh_type != SHT_DYNSYM) continue;
        if (sh[i].sh_link >= (uint32_t)n) return bad(o, "is cut off");
        if (!symbols(o, &sh[i], &sh[sh[i].sh_link])) return false;
    }
    for (int i = 0; i < n; i++)
        if (sh[i].sh_type == SHT_NOTE && !metadata(o, &sh[i])) return false;
    return true;
}

bool gcn_object(GcnCode *c, const void *bytes, size_t n, GcnError *e) {
    Object o = {.c = c, .bytes = bytes, .n = n, .e = e};
    return header(&o) && segments(&o) && sections(&o);
}
