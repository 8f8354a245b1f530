// tile_flow.c: the interpreter's order of operations: blocks, loops, roles, buffers and pipes.
//
// In: a kernel and the current block of the grid. Out: every operation was run (tile_eval.c) as
// often and in such an order as the program says. Holds afterwards: no rule was broken that makes
// what is read depend on who comes first:
//
//   - buffers: a view is used after its copy was waited for and a barrier told everybody, and
//     before a later copy into its stage began; a copy begins only where nobody may still read;
//   - pipes: a view is used between `take` and `drop`; `drop` comes after the products that read
//     it have landed; every stage that was filled is taken and dropped by the end;
//   - products: nothing reads a result before it was waited for;
//   - roles: somebody can always go on.
//
// A role is run until it has to wait for another; then the others have their turn. Pipes are
// queues with one writer and one reader, so the order in which roles are run changes nothing. The
// warpgroups of a role go in step.
#include "ir/tile_run.h"

#include <assert.h>
#include <string.h>

typedef enum Flow { DONE, HELD_UP, MOVED } Flow; // MOVED: the frames say where to go on

static RunFrame *top(Eval *E) { return &E->role->frame[E->role->nframes - 1]; }

static RunSlot *slot_of(Eval *E, const TileValue *v) { return &E->slots[v->id]; }

// ---- buffers

// The stage that a copy or a view names, or NULL with an error.
static RunStage *stage_of(Eval *E, const TileOp *op) {
    const TileValue *buffer = op->args.data[0];
    int at = run_ex(E, op->stage).i;
    if (at < 0 || at >= buffer->stages) {
        run_fail(E, "stage %d of %%%s, which has %d", at, buffer->name, buffer->stages);
        return NULL;
    }
    return &slot_of(E, buffer)->stages[at];
}

static void check_buffer_view(Eval *E, const TileValue *v) {
    RunSlot *slot = slot_of(E, v);
    RunStage *s = slot->view;
    if (s->generation != slot->generation)
        run_fail(E, "%%%s is used after a later copy into its stage began", v->name);
    else if (!s->filled)
        run_fail(E, "%%%s is used, but nothing was copied into its stage", v->name);
    else if (s->group > E->landed)
        run_fail(E, "%%%s is used before its copy was waited for", v->name);
    else if (!s->visible)
        run_fail(E, "%%%s is used without a barrier after the wait for its copy", v->name);
    s->read_at = E->barriers;
}

static void run_barrier(Eval *E) {
    E->barriers++;
    E->role->barriers++;
    for (int id = 0; id < E->k->nvalues; id++)
        for (RunStage *s = E->slots[id].stages; s && s->data; s++)
            if (s->filled && s->group <= E->landed) s->visible = true;
}

static void run_copy(Eval *E, const TileOp *op) {
    if (op->when && !run_ex(E, op->when).i) return;
    const TileValue *buffer = op->args.data[0];
    RunStage *s = stage_of(E, op);
    if (!s) return;
    if (s->filled && !s->visible)
        return run_fail(E, "a copy into %%%s begins while another into that stage is on its way",
                        buffer->name);
    if (s->read_at == E->barriers)
        return run_fail(E, "a copy into %%%s begins without a barrier since that stage was read",
                        buffer->name);
    s->filled = true;
    s->visible = false;
    s->group = E->committed + 1;
    s->generation++;
    run_fetch(E, op, buffer, s->data);
}

// ---- pipes

static int role_number(const Eval *E) { return (int)(E->role - E->roles); }

static bool held(const Eval *E, const RunSlot *s) {
    return s->view && s->view->filled && s->view->visible && s->generation == s->view->generation &&
           !s->view->by[role_number(E)].dropped;
}

static Flow run_fill(Eval *E, const TileOp *op) {
    if (op->when && !run_ex(E, op->when).i) return DONE;
    const TileValue *pipe = op->args.data[0];
    RunSlot *p = slot_of(E, pipe);
    RunStage *s = &p->stages[p->fills % pipe->stages];
    if (s->filled) return HELD_UP;
    if (!E->here.point) return run_fail(E, "it fills for a tile that the grid has not"), DONE;
    s->filled = true;
    s->visible = false;
    s->generation++;
    p->fills++;
    if (op->kind == TILE_GIVE) {
        const RunSlot *from = slot_of(E, op->args.data[1]);
        memcpy(s->data, from->data, sizeof *s->data * (size_t)from->n);
        return DONE;
    }
    run_pairs_note(E, op);
    run_fetch(E, op, pipe, s->data);
    return DONE;
}

static void see(RunSlot *view, RunStage *s) {
    view->view = s;
    view->generation = s ? s->generation : 0;
    view->poison = !s;
}

static Flow run_take(Eval *E, const TileOp *op) {
    const TileValue *pipe = op->args.data[0];
    RunSlot *p = slot_of(E, pipe), *view = slot_of(E, op->results.data[0]);
    if (op->when && !run_ex(E, op->when).i) return see(view, NULL), DONE;
    int *takes = &p->takes[role_number(E)];
    if (*takes == p->fills) return HELD_UP;
    RunStage *s = &p->stages[(*takes)++ % pipe->stages];
    s->visible = true;
    s->by[role_number(E)] = (RunRead){.reader = 0, .read_group = -1, .read_at = -1};
    see(view, s);
    return DONE;
}

static void run_view(Eval *E, const TileOp *op) {
    const TileValue *from = op->args.data[0];
    RunSlot *view = slot_of(E, op->results.data[0]), *p = slot_of(E, from);
    if (op->stage) {
        view->view = stage_of(E, op);
        if (view->view) view->generation = view->view->generation;
        return;
    }
    int takes = p->takes[role_number(E)];
    see(view, takes ? &p->stages[(takes - 1) % from->stages] : NULL);
    if (!held(E, view)) run_fail(E, "no stage of %%%s is held", from->name);
}

static void run_drop(Eval *E, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    RunSlot *s = slot_of(E, v);
    if (op->when && !run_ex(E, op->when).i) return;
    if (!held(E, s)) return run_fail(E, "%%%s is dropped, but not held", v->name);
    RunRead *by = &s->view->by[role_number(E)];
    RunSlot *pipe = slot_of(E, tile_pipe_of(v));
    if (by->reader > E->role->landed)
        return run_fail(E, "%%%s is dropped while a product may still read it", v->name);
    // One thread of a warpgroup drops for all: the others are known to be past their reading where
    // a barrier was since, or a product that all of them have issued has landed.
    bool each = pipe->given || tile_is_of_scores(E->k, v);
    if (!each && by->read_at == E->role->barriers && by->read_group >= E->role->landed)
        return run_fail(E, "%%%s is dropped while other threads may still read it", v->name);
    by->dropped = true;
    int drops = 0;
    for (int r = 0; r < E->nroles; r++) drops += s->view->by[r].dropped;
    if (drops < pipe->readers) return;
    for (int r = 0; r < E->nroles; r++) s->view->by[r].dropped = false;
    s->view->filled = false;
}

// Every operand must be there; products that read a stage keep it.
static bool check_operands(Eval *E, const TileOp *op) {
    for (int i = 0; i < op->args.n && !E->failed; i++) {
        const TileValue *v = op->args.data[i];
        RunSlot *s = slot_of(E, v);
        if (s->stages) continue;
        bool adds = op->async && i == 2; // products complete in order
        if (s->group > E->role->landed && !adds)
            run_fail(E, "%%%s is used before the product was waited for", v->name);
        if (op->async && E->place[v->id] >= 0) s->reader = E->role->issued + 1;
        if (s->by)
            run_fail(E, "%%%s is used after %%%s was made in its place", v->name, s->by->name);
        if (!s->view) continue;
        if (!tile_pipe_of(v))
            check_buffer_view(E, v);
        else if (!held(E, s) && op->kind != TILE_DROP)
            run_fail(E, "%%%s is used after it was dropped", v->name);
        if (!tile_pipe_of(v)) continue;
        RunRead *by = &s->view->by[role_number(E)];
        if (op->async) by->reader = E->role->issued + 1;
        if (op->kind == TILE_MAP) by->read_group = E->role->issued;
        if (op->kind == TILE_MAP) by->read_at = E->role->barriers;
    }
    return !E->failed;
}

// A product may still read what lies where the map makes a tile; afterwards nobody may.
static void check_rewrite(Eval *E, const TileOp *map) {
    const TileValue *made = map->results.data[0];
    const TileBlock *b = &E->k->body;
    for (const TileOp *op = tile_next(b, NULL); op && !E->failed; op = tile_next(b, op)) {
        const TileValue *v = op->results.n ? op->results.data[0] : NULL;
        if (!v || E->place[made->id] < 0 || E->place[v->id] != E->place[made->id]) continue;
        RunSlot *s = slot_of(E, v);
        if (s->reader > E->role->landed)
            run_fail(E, "%%%s is made while a product may still read what lies in its place",
                     made->name);
        s->by = v == made ? NULL : made;
    }
}

// ---- products

static void run_product(Eval *E, const TileOp *op) {
    RunSlot *s = slot_of(E, op->results.data[0]);
    s->group = op->async ? ++E->role->issued : 0;
    run_mma(E, op);
}

static void land(Eval *E, int pending) {
    RunRole *r = E->role;
    if (r->issued - pending > r->landed) r->landed = r->issued - pending;
}

static void spread_poison(Eval *E, const TileOp *op) {
    bool poison = false;
    for (int i = 0; i < op->args.n; i++) poison |= slot_of(E, op->args.data[i])->poison;
    for (int i = 0; i < op->results.n; i++) slot_of(E, op->results.data[i])->poison = poison;
}

static void run_turn(Eval *E, const TileOp *op) {
    if (op->pass != E->role->turn)
        run_fail(E, op->pass ? "a turn is passed on that was not taken"
                             : "a turn is taken that is not passed on");
    E->role->turn = !op->pass;
}

// ---- the grid

// The producer chooses the block's next tile; others wait until it has, and it until they know.
static Flow run_next(Eval *E) {
    RunRole *r = E->role, *leader = r;
    for (int i = 0; i < E->nroles; i++)
        if (!strcmp(E->roles[i].op->role, "producer")) leader = &E->roles[i];
    for (int i = 0; r == leader && i < E->nroles; i++)
        if (E->roles[i].nexts < r->nexts) return HELD_UP;
    if (r != leader && leader->nexts <= r->nexts) return HELD_UP;
    r->before = E->here;
    r->number = (r->nexts++ ? r->number : E->block - E->blocks) + E->blocks;
    E->here.valid = r->number < E->points;
    E->here.point = E->here.valid ? (uint32_t)r->number + 1 : 0;
    run_point(E, E->here.valid ? r->number : 0, &E->here);
    return DONE;
}

// ---- loops

static void assign(Eval *E, const TileValue *to, const RunSlot *from) {
    RunSlot *s = slot_of(E, to);
    const double *data = from->view ? from->view->data : from->data;
    if (s->n) memcpy(s->data, data, sizeof *data * (size_t)s->n);
    s->poison = from->poison;
    s->group = 0;
}

static void begin_carried(Eval *E, const TileOp *op) {
    for (int i = 0; i < op->carried.n; i++)
        assign(E, op->carried.data[i], slot_of(E, op->args.data[i]));
}

static void end_carried(Eval *E, const TileOp *op) {
    for (int i = 0; i < op->results.n; i++)
        assign(E, op->results.data[i], slot_of(E, op->carried.data[i]));
}

// The yielded values become the carried ones all at once: one may be yielded in another's place.
static void carry_over(Eval *E, const TileOp *loop) {
    const TileOp *yield = loop->body.last;
    Arena *scratch = arena_new();
    RunSlot *temp = ARENA_ARRAY(scratch, RunSlot, loop->carried.n);
    for (int i = 0; i < loop->carried.n; i++) {
        const RunSlot *s = slot_of(E, yield->args.data[i]);
        temp[i] = *s;
        temp[i].data = ARENA_ARRAY(scratch, double, s->n);
        if (s->n) memcpy(temp[i].data, s->data, sizeof(double) * (size_t)s->n);
    }
    for (int i = 0; i < loop->carried.n; i++) assign(E, loop->carried.data[i], &temp[i]);
    arena_free(scratch);
}

static RunFrame *push(Eval *E, const TileOp *owner) {
    top(E)->op = owner->next;
    assert(E->role->nframes < RUN_MAX_NEST);
    RunFrame *f = &E->role->frame[E->role->nframes++];
    *f = (RunFrame){.owner = owner, .op = owner->body.first, .step = E->here.step};
    bool binds = owner->kind == TILE_LOOP || owner->kind == TILE_AT;
    f->tile = binds ? E->here.tile[owner->axis] : 0;
    return f;
}

static void pop(Eval *E) {
    const RunFrame *f = top(E);
    bool binds = f->owner->kind == TILE_LOOP || f->owner->kind == TILE_AT;
    E->here.step = f->step;
    if (binds) E->here.tile[f->owner->axis] = f->tile;
    E->role->nframes--;
}

// Goes to the next step that is not skipped, or leaves the loop.
static void seek_step(Eval *E, RunFrame *f) {
    const TileOp *op = f->owner;
    for (E->op = op; f->t < f->to && !E->failed; f->t++) {
        E->here.step = f->t;
        E->here.tile[op->axis] = run_ex(E, op->index).i;
        if (op->where && !run_ex(E, op->where).i) continue;
        if (op->tiles == CLASS_FULL) run_check_full(E);
        f->op = op->body.first;
        return;
    }
    end_carried(E, op);
    pop(E);
}

static Flow enter(Eval *E, const TileOp *op) {
    RunFrame *f = push(E, op);
    begin_carried(E, op);
    if (op->kind == TILE_LOOP) {
        f->t = run_ex(E, op->from).i;
        f->to = run_ex(E, op->to).i;
        seek_step(E, f);
    } else if (op->kind == TILE_AT) {
        E->here.tile[op->axis] = run_ex(E, op->index).i;
        if (op->tiles == CLASS_FULL) run_check_full(E);
    } else if (!E->here.valid) {
        end_carried(E, op);
        pop(E);
    }
    return MOVED;
}

// What was made of what was not taken decides nothing.
static Flow run_redo(Eval *E, const TileOp *op) {
    const TileValue *v[] = {op->args.data[0], op->args.data[op->shift_bits ? op->args.n - 1 : 0]};
    for (int i = 0; i < 2; i++)
        if (slot_of(E, v[i])->poison)
            return run_fail(E, "%%%s decides, but it was made of what was not taken", v[i]->name),
                   DONE;
    if (run_any_beyond(E, op)) return push(E, op), MOVED;
    for (int i = 0; i < op->results.n; i++)
        assign(E, op->results.data[i], slot_of(E, op->args.data[i + 1]));
    return DONE;
}

static Flow leave(Eval *E, const TileOp *yield) {
    RunFrame *f = top(E);
    const TileOp *op = f->owner;
    if (op->kind == TILE_REDO) {
        run_choose(E, op);
        pop(E);
        return MOVED;
    }
    if (op->kind == TILE_AT) {
        for (int i = 0; i < op->results.n; i++)
            assign(E, op->results.data[i], slot_of(E, yield->args.data[i]));
        pop(E);
        return MOVED;
    }
    carry_over(E, op);
    if (op->kind == TILE_LOOP) {
        f->t++;
        seek_step(E, f);
    } else if (E->here.valid) {
        f->op = op->body.first;
    } else {
        end_carried(E, op);
        pop(E);
    }
    return MOVED;
}

// ---- roles

static void run_roles(Eval *E, const TileOp *first);

static Flow run_op(Eval *E, const TileOp *op) {
    switch ((int)op->kind) {
    case TILE_LOAD: run_load(E, op); break;
    case TILE_STORE: run_store(E, op); break;
    case TILE_MAP:
        check_rewrite(E, op);
        run_map(E, op);
        if (op->waits) land(E, op->pending);
        break;
    case TILE_APPEND: run_append(E, op); break;
    case TILE_MMA: run_product(E, op); break;
    case TILE_BESIDE: run_beside(E, op); break;
    case TILE_INVERT: run_invert(E, op); break;
    case TILE_COPY: run_copy(E, op); break;
    case TILE_VIEW: run_view(E, op); return DONE;
    case TILE_COMMIT: E->committed++; break;
    case TILE_WAIT:
        if (E->committed - op->pending > E->landed) E->landed = E->committed - op->pending;
        break;
    case TILE_BARRIER: run_barrier(E); break;
    case TILE_FILL:
    case TILE_GIVE: return run_fill(E, op);
    case TILE_TAKE: return run_take(E, op);
    case TILE_DROP: run_drop(E, op); break;
    case TILE_NEXT: return run_next(E);
    case TILE_MMA_WAIT: land(E, op->pending); break;
    case TILE_TURN: run_turn(E, op); break;
    case TILE_REDO: return run_redo(E, op);
    case TILE_LOOP:
    case TILE_TILES:
    case TILE_AT: return enter(E, op);
    case TILE_YIELD: return leave(E, op);
    case TILE_ROLE:
        run_roles(E, op);
        top(E)->op = NULL;
        return MOVED;
    case TILE_ALLOC:
    case TILE_PIPE: return DONE;
    default: break;
    }
    spread_poison(E, op);
    return DONE;
}

static Flow step(Eval *E, const TileOp *op) {
    E->op = op;
    if (!check_operands(E, op)) return DONE;
    RunPlace here = E->here;
    if (op->behind) E->here = E->role->before, run_sequence(E, &E->here);
    Flow flow = run_op(E, op);
    if (op->behind) E->here = here, run_sequence(E, &here);
    return flow;
}

// Runs a role until it ends or is held up; whether it did anything.
static bool run_role(Eval *E, RunRole *r) {
    bool any = false;
    RunRole *outer = E->role;
    RunPlace place = E->here;
    E->role = r;
    E->here = r->here;
    if (r->nexts) run_sequence(E, &E->here);
    while (r->nframes && !E->failed) {
        const TileOp *op = top(E)->op;
        if (!op) {
            r->nframes--;
            continue;
        }
        Flow flow = step(E, op);
        if (flow == HELD_UP) {
            r->waits = op;
            break;
        }
        if (flow == DONE) top(E)->op = op->next;
        any = true;
    }
    r->here = E->here;
    E->role = outer;
    E->here = place;
    if (!outer || outer->nexts) run_sequence(E, &place);
    return any;
}

static void deadlock(Eval *E) {
    Text t = text_new(E->arena);
    for (int i = 0; i < E->nroles; i++) {
        const RunRole *r = &E->roles[i];
        if (!r->nframes) continue;
        text_printf(&t, "%s%s waits in %s", t.n ? ", " : "", r->op->role,
                    tile_kind_name(r->waits->kind));
        if (r->waits->args.n) text_printf(&t, " %%%s", r->waits->args.data[0]->name);
    }
    run_fail(E, "nobody can go on: %s", t.s);
}

static void check_end(Eval *E) {
    E->op = E->roles[0].op;
    for (int i = 0; i < E->nroles && !E->failed; i++) {
        const RunRole *r = &E->roles[i];
        if (r->issued > r->landed)
            run_fail(E, "%s ends before its products were waited for", r->op->role);
        if (r->turn) run_fail(E, "%s ends in its turn", r->op->role);
        if (r->nexts != E->roles[0].nexts)
            run_fail(E, "%s and %s have not the same tiles", E->roles[0].op->role, r->op->role);
    }
    for (const TileOp *op = E->k->body.first; op && !E->failed; op = op->next) {
        if (op->kind != TILE_PIPE) continue;
        const TileValue *v = op->results.data[0];
        for (int i = 0; i < v->stages; i++)
            if (slot_of(E, v)->stages[i].filled)
                run_fail(E, "a stage of %%%s is filled and not dropped at the end", v->name);
    }
}

// Who takes from pipes, and whether a role gives.
static void meet_pipes(Eval *E) {
    for (const TileOp *pipe = E->k->body.first; pipe; pipe = pipe->next) {
        if (pipe->kind != TILE_PIPE) continue;
        const TileBlock *all = &E->k->body;
        RunSlot *s = slot_of(E, pipe->results.data[0]);
        const TileOp *last = NULL;
        s->readers = 0;
        for (const TileOp *op = tile_next(all, NULL); op; op = tile_next(all, op)) {
            if (!op->args.n || op->args.data[0] != pipe->results.data[0]) continue;
            s->given |= op->kind == TILE_GIVE;
            if (op->kind != TILE_TAKE || tile_role_of(op) == last) continue;
            last = tile_role_of(op);
            s->readers++;
        }
    }
}

static void run_roles(Eval *E, const TileOp *first) {
    E->nroles = 0;
    for (const TileOp *op = first; op; op = op->next) E->nroles++;
    E->roles = ARENA_ARRAY(E->arena, RunRole, E->nroles);
    int n = 0;
    for (const TileOp *op = first; op; op = op->next) {
        RunRole *r = &E->roles[n++];
        r->op = op;
        r->nframes = 1;
        r->frame[0] = (RunFrame){.owner = op, .op = op->body.first};
    }
    meet_pipes(E);
    for (bool left = true; left && !E->failed;) {
        bool any = left = false;
        for (int i = 0; i < E->nroles && !E->failed; i++) {
            any |= run_role(E, &E->roles[i]);
            left |= E->roles[i].nframes > 0;
        }
        if (left && !any) deadlock(E);
    }
    if (!E->failed) check_end(E);
}

void run_block(Eval *E) {
    E->committed = E->landed = E->barriers = 0;
    for (int id = 0; id < E->k->nvalues; id++) {
        RunSlot *s = &E->slots[id];
        s->fills = s->group = s->reader = 0;
        memset(s->takes, 0, sizeof s->takes);
        s->by = NULL;
        for (RunStage *stage = s->stages; stage && stage->data; stage++)
            *stage = (RunStage){.data = stage->data, .read_at = -1};
    }
    RunRole body = {.here = E->here, .nframes = 1, .frame = {{.op = E->k->body.first}}};
    run_role(E, &body);
}
