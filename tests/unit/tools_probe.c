// The probes of a GPU's rates, against a driver of plain functions: which kernel is taken, what is
// made of its time; and whether ptxas takes its text.
#include "runtime/device.h"
#include "runtime/gpu.h"
#include "tests/unit/test.h"
#include "tools/probe.h"
#include <unistd.h>

static struct Fake {
    int capability, launches, copies, allocations;
    size_t room; // the largest allocation that succeeds
    char *ptx;
} fake;

static int f_init(unsigned flags) { return (int)flags; }
static int f_count(int *n) { return *n = 1, 0; }
static int f_device(int *d, int i) { return *d = i, 0; }
static int f_attribute(int *out, int which, int d) {
    *out = which == 16   ? 100
           : which == 75 ? fake.capability / 10
           : which == 76 ? fake.capability % 10
                         : 200 << 10;
    return d;
}
static int f_text(int r, const char **out) { return *out = "error", r < 0; }
static int f_retain(void **c, int d) { return *c = &fake, d; }
static int f_release(int d) { return d; }
static int f_current(void **c) { return *c = &fake, 0; }
static int f_ctx_device(int *d) { return *d = 0, 0; }
static int f_push(void *c) { return c == NULL; }
static int f_pop(void **c) { return *c = NULL, 0; }
static int f_sync(void) { return 0; }
static int f_load(void **m, const void *image, unsigned n, int *options, void **values) {
    (void)n, (void)options, (void)values;
    free(fake.ptx);
    return fake.ptx = strdup(image), *m = &fake, 0;
}
static int f_unload(void *m) { return m == NULL; }
static int f_function(void **f, void *m, const char *name) {
    return *f = m, strcmp(name, "attn_probe");
}
static int f_set(void *f, int which, int v) { return !f || which != 8 || v <= 48 << 10; }
static int f_launch(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *s, void **args, void **extra) {
    (void)shared, (void)args;
    fake.launches++;
    return !f || gx % 100 || gy * gz * by * bz != 1 || bx != 256 || s || extra;
}
static int f_alloc(uint64_t *p, size_t n) {
    if (n > fake.room) return 2;
    return fake.allocations++, *p = 4096, 0;
}
static int f_free(uint64_t p) { return fake.allocations--, p != 4096; }
static int f_within(uint64_t to, uint64_t from, size_t n, void *s) {
    return fake.copies++, to != from || n > fake.room || s;
}
static int f_event(void **e, unsigned flags) { return *e = malloc(1), (int)flags; }
static int f_record(void *e, void *s) { return !e || s; }
static int f_event_sync(void *e) { return !e; }
static int f_elapsed(float *ms, void *a, void *b) { return *ms = 2, a == b; }
static int f_event_free(void *e) { return free(e), 0; }

static const GpuDriver DRIVER = {
    .init = f_init,
    .error_name = f_text,
    .error_string = f_text,
    .device_count = f_count,
    .device_get = f_device,
    .device_attribute = f_attribute,
    .device_sync = f_sync,
    .primary_retain = f_retain,
    .primary_release = f_release,
    .ctx_current = f_current,
    .ctx_device = f_ctx_device,
    .ctx_push = f_push,
    .ctx_pop = f_pop,
    .module_load = f_load,
    .module_unload = f_unload,
    .module_function = f_function,
    .function_set = f_set,
    .launch = f_launch,
    .alloc = f_alloc,
    .release = f_free,
    .copy_within = f_within,
    .event_create = f_event,
    .event_record = f_record,
    .event_sync = f_event_sync,
    .event_elapsed = f_elapsed,
    .event_destroy = f_event_free,
};

static void assembles(const char *target) {
    char name[] = "/tmp/attnc-probe-XXXXXX", command[256];
    int fd = mkstemp(name);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    ck_assert_ptr_nonnull(f);
    fputs(fake.ptx, f);
    fclose(f);
    snprintf(command, sizeof command,
             "p=$(tests/tools.sh ptxas) && "
             "$p -arch=%s -o /dev/null %s && ! $p -arch=%s -v -o /dev/null %s 2>&1 | "
             "grep -E '[1-9][0-9]* bytes spill|C75'",
             target, name, target, name);
    int status = system(command);
    unlink(name);
    ck_assert_int_eq(status, 0);
}

static void probe(int capability, size_t room, Dtype dtype, const char *says, const char *target,
                  double flop_of_an_sm) {
    attn_context *c = attn_create();
    attn_error e;
    Peak p;
    c->cuda = malloc(sizeof *c->cuda);
    *c->cuda = DRIVER;
    fake = (struct Fake){.capability = capability, .room = room};
    ck_assert_msg(probe_gpu(c, (attn_device){ATTN_CUDA, 0}, dtype, &p, &e) == ATTN_OK, "%s",
                  e.message);
    ck_assert_str_eq(p.flops_of, says);
    ck_assert_double_eq_tol(p.flops, 100 * flop_of_an_sm / 2e-3, 1);
    ck_assert_double_eq_tol(p.bytes, 2.0 * (double)room / 2e-3, 1);
    ck_assert(fake.launches > 2 && fake.copies > 2);
    ck_assert_int_eq(fake.allocations, 0);
    assembles(target);
    free(fake.ptx);
    attn_destroy(c);
}

TEST(each_probe) {
    size_t gigabyte = 1 << 30;
    probe(90, gigabyte, DT_BF16, "bf16 products (wgmma)", "sm_90a",
          2.0 * 128 * 256 * 16 * 16 * 1024);
    probe(89, gigabyte, DT_F16, "bf16 products (mma.sync)", "sm_80",
          2.0 * 16 * 16 * 8 * 16 * 32 * 4096);
    probe(90, gigabyte / 4, DT_F32, "f32 multiply-adds", "sm_80", 2.0 * 2048 * 128 * 4096);
}

TEST(no_room) {
    attn_context *c = attn_create();
    attn_error e;
    Peak p;
    c->cuda = malloc(sizeof *c->cuda);
    *c->cuda = DRIVER;
    fake = (struct Fake){.capability = 90};
    ck_assert_int_eq(probe_gpu(c, (attn_device){ATTN_CUDA, 0}, DT_BF16, &p, &e), ATTN_ERROR_DEVICE);
    ck_assert_str_eq(e.message, "allocating GPU memory: error (2) error");
    attn_destroy(c);
}
