// loads.c: what loops load of q, k and v, as the schedules of GPUs ask.
#include "passes/schedule/schedule.h"

static bool is_operand(const TileProgram *p, const TileOp *op) {
    if (op->kind != TILE_LOAD) return false;
    return tile_is_operand(p, &p->tensors.data[op->tensor]);
}

static int stages_in(const TileProgram *p, const TileOp *loop, TensorRole role) {
    bool loads = false, others = false;
    for (const TileOp *op = loop->body.first; op; op = op->next) {
        if (!is_operand(p, op)) continue;
        bool of_role = p->tensors.data[op->tensor].role == role;
        loads |= of_role;
        others |= !of_role;
    }
    return loads && !others ? 2 : 1;
}

int pass_kernel_stages(const TileProgram *p, const TileKernel *k, TensorRole role) {
    int most = 1;
    for (const TileOp *loop = k->body.first; loop; loop = loop->next) {
        int n = stages_in(p, loop, role);
        if (n > most) most = n;
    }
    return most;
}

int pass_stages(const TileProgram *p, TensorRole role) {
    int most = 1;
    for (int i = 0; i < p->kernels.n; i++) {
        int n = pass_kernel_stages(p, p->kernels.data[i], role);
        if (n > most) most = n;
    }
    return most;
}

bool pass_few_loads(const TileProgram *p, const TileKernel *k, int most, Diags *diags) {
    for (const TileOp *loop = tile_next(&k->body, NULL); loop; loop = tile_next(&k->body, loop)) {
        int n = 0;
        for (const TileOp *op = loop->body.first; op; op = op->next) n += is_operand(p, op);
        if (n <= most) continue;
        diag_error(diags, loop->span,
                   "a loop that loads %d tiles of q, k and v; target '%s' schedules up to %d", n,
                   target_get(p->target)->name, most);
        return false;
    }
    return true;
}
