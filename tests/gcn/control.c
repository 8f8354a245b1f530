// control.c: branches, calls, barriers, waiting, and what needs no model.
#include "tests/gcn/wave.h"

static void go(Wave *w, const Op *op) { w->pc = &w->code->op[op->target]; }

static void jump(Wave *w, const Op *op, uint64_t address) {
    const GcnCode *c = w->code;
    gcn_need(w, op, 1);
    uint64_t at = address - (uint64_t)(uintptr_t)c->image - c->text;
    if (at >= c->text_bytes || at % 4 || c->op_at[at / 4] < 0) {
        gcn_fault(w, op, "goes to 0x%llx, where no instruction starts",
                  (unsigned long long)address);
        return;
    }
    w->pc = &c->op[c->op_at[at / 4]];
}

static uint64_t after(const Wave *w, const Op *op) {
    return (uint64_t)(uintptr_t)w->code->image + op->next;
}

static void s_branch(Wave *w, const Op *op) { go(w, op); }

typedef enum Condition { IF_SCC0, IF_SCC1, IF_VCCZ, IF_VCCNZ, IF_EXECZ, IF_EXECNZ } Condition;

static void s_cbranch(Wave *w, const Op *op) {
    static const int decides[] = {GCN_SCC, GCN_SCC, GCN_VCC, GCN_VCC, GCN_EXEC, GCN_EXEC};
    int reg = decides[op->row->arg];
    bool known = reg == GCN_SCC ? gcn_whole(w, reg) : !(w->all & ~gcn_mask_known(w, reg));
    if (!known) w->defined = 0;
    gcn_need(w, op, 1);
    bool vcc = gcn_mask(w, GCN_VCC) != 0, exec = gcn_exec(w) != 0;
    bool taken[] = {!w->scc, w->scc, !vcc, vcc, !exec, exec};
    if (taken[op->row->arg]) go(w, op);
}

static void s_getpc(Wave *w, const Op *op) { gcn_put_scalar(w, op, 0, after(w, op)); }

static void s_setpc(Wave *w, const Op *op) { jump(w, op, gcn_scalar(w, op, 0)); }

static void s_swappc(Wave *w, const Op *op) {
    uint64_t to = gcn_scalar(w, op, 0);
    gcn_put_scalar(w, op, 0, after(w, op));
    jump(w, op, to);
}

static void s_endpgm(Wave *w, const Op *op) {
    (void)op;
    w->state = WAVE_ENDED;
}

// What a wave has written to LDS must have arrived, what it has read must have been read: on the
// device nothing else orders them with the other waves' accesses.
static void s_barrier(Wave *w, const Op *op) {
    if (gcn_outstanding_lds(w))
        gcn_fault(w, op, "an access to LDS may still be under way: there is no s_waitcnt");
    w->state = WAVE_AT_BARRIER;
}

static void s_waitcnt(Wave *w, const Op *op) { gcn_wait(w, op->wait); }

// s_waitcnt_vscnt null, 0x0 and its relatives; row->arg: the counter
static void s_waitcnt_one(Wave *w, const Op *op) {
    int counts[GCN_COUNTERS] = {-1, -1, -1};
    counts[op->row->arg] = (int)gcn_scalar(w, op, 1);
    gcn_wait(w, counts);
}

static void nothing(Wave *w, const Op *op) {
    (void)w;
    (void)op;
}

static const Row rows[] = {
    {"s_branch", s_branch, "=u", ROW_BRANCH, 0, 0},
    {"s_cbranch_scc0", s_cbranch, "=u", ROW_BRANCH, IF_SCC0, 0},
    {"s_cbranch_scc1", s_cbranch, "=u", ROW_BRANCH, IF_SCC1, 0},
    {"s_cbranch_vccz", s_cbranch, "=u", ROW_BRANCH, IF_VCCZ, 0},
    {"s_cbranch_vccnz", s_cbranch, "=u", ROW_BRANCH, IF_VCCNZ, 0},
    {"s_cbranch_execz", s_cbranch, "=u", ROW_BRANCH, IF_EXECZ, 0},
    {"s_cbranch_execnz", s_cbranch, "=u", ROW_BRANCH, IF_EXECNZ, 0},
    {"s_getpc_b64", s_getpc, "q=", 0, 0, 0},
    {"s_setpc_b64", s_setpc, "=q", 0, 0, 0},
    {"s_swappc_b64", s_swappc, "q=q", 0, 0, 0},
    {"s_endpgm", s_endpgm, "=", 0, 0, 0},
    {"s_barrier", s_barrier, "=", 0, 0, 0},
    {"s_waitcnt", s_waitcnt, "=", ROW_WAIT, 0, 0},
    {"s_waitcnt_vscnt", s_waitcnt_one, "=uu", 0, GCN_VS, 0},
    {"s_waitcnt_vmcnt", s_waitcnt_one, "=uu", 0, GCN_VM, 0},
    {"s_waitcnt_lgkmcnt", s_waitcnt_one, "=uu", 0, GCN_LGKM, 0},
    {"s_nop", nothing, "=u", 0, 0, 0},
    {"s_sleep", nothing, "=u", 0, 0, 0},
    {"s_setprio", nothing, "=u", 0, 0, 0},
    {"s_clause", nothing, "=u", ROW_ANY, 0, 0},
    {"s_delay_alu", nothing, "=u", ROW_ANY, 0, 0},
    {"s_waitcnt_depctr", nothing, "=u", ROW_ANY, 0, 0},
    {"s_set_inst_prefetch_distance", nothing, "=u", ROW_ANY, 0, 0},
    {"s_inst_prefetch", nothing, "=u", ROW_ANY, 0, 0},
    {"s_sendmsg", nothing, "=u", ROW_ANY, 0, 0},          // gives registers back before the end
    {"s_denorm_mode", nothing, "=u", ROW_ANY, 0, 0},      // denormals are always kept
    {"s_setreg_imm32_b32", nothing, "=u", ROW_ANY, 0, 0}, // the same on gfx9
    {"buffer_gl0_inv", nothing, "=", ROW_ANY, 0, 0},      // caches
    {"buffer_gl1_inv", nothing, "=", ROW_ANY, 0, 0},
    {"buffer_inv", nothing, "=", ROW_ANY, 0, 0},
    {"buffer_invl2", nothing, "=", ROW_ANY, 0, 0},
    {"buffer_wbl2", nothing, "=", ROW_ANY, 0, 0},
    {"buffer_wbinvl1", nothing, "=", ROW_ANY, 0, 0},
    {"buffer_wbinvl1_vol", nothing, "=", ROW_ANY, 0, 0},
    {"s_dcache_inv", nothing, "=", ROW_ANY, 0, 0},
    {"s_icache_inv", nothing, "=", ROW_ANY, 0, 0},
};

GcnRows gcn_rows_control(void) { return (GcnRows){rows, sizeof rows / sizeof *rows}; }
