// device.c: a variant whose `output` is the function of two inputs' elements, and nothing else.
#include "tests/math/device.h"
#include "ir/expr_ops.h"

#include <stdio.h>
#include <string.h>

static const char *source(Arena *a, ExOp op) {
    const char *x = "x[i - q_offset, d]", *y = "_y[i - q_offset, d]", *name = ex_op_name(op), *f;
    if (ex_ops[op].fix == X_INFIX)
        f = arena_printf(a, "%s %s %s", x, name, y);
    else if (ex_ops[op].arity == 2)
        f = arena_printf(a, "%s(%s, %s)", name, x, y);
    else
        f = arena_printf(a, "%s(%s)", name, x);
    return arena_printf(
        a,
        "attention function { dim D = %d; input x: f32[Sq, D]; input _y: f32[Sq, D]; "
        "score(q, k) = dot(q, k); normalize(s) = s; output(o, b, h, i, d) = %s; }",
        MATH_DEVICE_ROW, f);
}

bool math_device_open(MathDevice *d, ExOp op, int64_t n, const Options *o) {
    *d = (MathDevice){.o = *o, .n = n};
    Arena *a = arena_new();
    const char *text = source(a, op);
    CompileOptions options = {
        .source = {.path = "function.attn", .text = text, .text_bytes = strlen(text)},
        .target = cmd_device_target(o, NULL),
        .dtype = DT_F32,
        .level = 3};
    bool good = compile_open(&d->c, &options) == FE_OK && compile_streams(&d->c) &&
                launch_open_source(&d->l, d->c.arena, &d->c, &d->o) == STATUS_DONE;
    diag_print(&d->c.diags, stderr);
    arena_free(a);
    if (!good) return false;
    const char *shape =
        arena_printf(d->c.arena, "B=1,H=1,Sk=1,Sq=%lld", (long long)(n / MATH_DEVICE_ROW));
    if (bind_make(&d->b, d->c.arena, d->l.sig, &d->o, shape) != STATUS_DONE) return false;
    d->a = sig_arg(d->l.sig, "x"), d->second = sig_arg(d->l.sig, "_y"),
    d->out = sig_arg(d->l.sig, "o");
    return true;
}

float *math_device_in(MathDevice *d, int which) {
    return d->b.tensor[which ? d->second : d->a].data;
}

const float *math_device_run(MathDevice *d) {
    bool good = launch_bind(&d->l, &d->b) == STATUS_DONE && launch_run(&d->l) == STATUS_DONE &&
                launch_fetch(&d->l) == STATUS_DONE;
    launch_unbind(&d->l);
    return good ? d->b.tensor[d->out].data : NULL;
}

void math_device_close(MathDevice *d) {
    launch_close(&d->l);
    bind_free(&d->b);
    compile_close(&d->c);
}
