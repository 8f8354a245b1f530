// columns.c: fragments whose rows a tensor has side by side, as those of a recurrence's state, or whose columns' places are
// said one by one, or that do not lie as a matrix instruction's.
//
// In: such a load or store. Out: moves of single elements, or of several that lie side by side in a thread and in aligned rows of
// the tensor; outside the tensor a load gives 0, and nothing is stored. A state0 that is left out is 0.
#include "codegen/gpu/gpu.h"

#include <assert.h>

typedef struct Place {
    Val ptr; // in global memory; of what is outside, the tensor's first element
    Val in;  // i1; NULL: always
} Place;

// What all elements of a thread share.
typedef struct Rows {
    Val tensor, ptr;           // its first element; the thread's first one
    Val first[TILE_MAX_DIMS];  // the thread's first index, i32
    Val stride[TILE_MAX_DIMS]; // NULL: no element has another index
    Val extent[TILE_MAX_DIMS]; // NULL: all elements are inside
    Ty type;
} Rows;

// Whether no tile goes past the end.
static bool is_full(Cg *cg, const TileOp *op, int d) {
    const Ex *extent = cg->p->tensors.data[op->tensor].extent[d];
    const TileAxis *a = &cg->k->axes[op->coord[d].axis];
    return extent->op == EX_CONST && a->size->op == EX_CONST && extent->i == a->size->i &&
           extent->i % a->extent == 0 && a->beside < 0;
}

static Rows rows_of(Cg *cg, const TileOp *op, const TileValue *v) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Rows r = {.type = cg_dtype(cg, t->dtype)};
    Val at = cg_i64(cg, 0);
    for (int d = 0; d < t->rank; d++) {
        int axis = op->coord[d].axis;
        if (op->each[d]) continue; // added for the axis
        Val i = cg_uniform(cg, op->coord[d].at), stride = cg_stride(cg, op->tensor, d);
        bool some = op->width && d == t->rank - 1;
        if (axis >= 0) {
            i = cg_times(cg, i, cg->k->axes[axis].extent);
            i = cg_add(cg, i, cg_thread_part(cg, v->layout, axis));
            r.stride[d] = stride;
            if (some || !is_full(cg, op, d))
                r.extent[d] = some ? cg_i32(cg, op->width) : cg_extent(cg, op->tensor, d);
        }
        r.first[d] = i;
        at = cg_add(cg, at, cg_mul(cg, cg_sext(cg, i, cg->i64), stride));
    }
    r.tensor = cg_global(cg, cg_origin(cg, op));
    r.ptr = cg_element(cg, r.type, r.tensor, at);
    return r;
}

static Val both(Cg *cg, Val a, Val b) { return a ? cg_and(cg, a, b) : b; }

static Place place_of(Cg *cg, const TileOp *op, const TileValue *v, const Rows *r,
                      const int *part) {
    Place p = {r->ptr, NULL};
    for (int d = 0; d < cg->p->tensors.data[op->tensor].rank; d++) {
        int n = r->stride[d] ? part[op->coord[d].axis] : 0;
        if (n) p.ptr = cg_element(cg, r->type, p.ptr, cg_mul(cg, cg_i64(cg, n), r->stride[d]));
        if (r->extent[d])
            p.in = both(cg, p.in, cg_less(cg, cg_plus(cg, r->first[d], n), r->extent[d]));
    }
    Val places[TILE_MAX_AXES] = {NULL};
    for (int i = 0; i < v->rank; i++) {
        int axis = v->axis[i];
        if (!tile_goes_by_element(op, axis)) continue;
        Val pos = cg_add(cg, cg_element_begin(cg, op, axis), cg_thread_part(cg, v->layout, axis));
        places[axis] = pos = cg_plus(cg, pos, part[axis]);
        p.ptr = cg_element(cg, r->type, p.ptr, cg_element_offset(cg, op, axis, pos));
        p.in = both(cg, p.in, cg_less(cg, pos, cg_axis_size(cg, axis)));
    }
    if (tile_scatters(op))
        p.ptr = cg_element(cg, r->type, p.ptr, cg_scatter_offset(cg, op, places));
    if (p.in) p.ptr = cg_select(cg, p.in, p.ptr, r->tensor);
    return p;
}

bool cg_goes_by_columns(Cg *cg, const TileOp *op, const TileValue *v) {
    int last = op->coord[cg->p->tensors.data[op->tensor].rank - 1].axis;
    enum { MATRIX_ROWS = 16 };
    if (v->home != HOME_FRAGMENT) return false;
    const CgFragment *f = cg_fragment(cg, v);
    if (f->rows >= 0 && layout_covers(&f->is, f->rows) < MATRIX_ROWS) return true;
    if (cg->k->purpose == PURPOSE_STEPS) return true;
    return v->rank == 2 && (f->rows == last || tile_goes_by_element(op, f->columns));
}

static void part_of(const TileValue *v, const CgFragment *f, int i, int *part) {
    for (int a = 0; a < v->rank; a++)
        part[v->axis[a]] = layout_part(&f->is, LAYOUT_REG, v->axis[a], i);
}

// Elements that one access moves: those side by side in the registers of a thread, in rows of whole accesses.
static int side_by_side(Cg *cg, const TileOp *op, const TileValue *v) {
    enum { BYTES = 16 };
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    const LayoutDigit *first = &cg_fragment(cg, v)->is.digit[0];
    const Ex *columns = t->extent[t->rank - 1];
    int bytes = dtype_bytes(t->dtype);
    bool along = first->count && first->place == LAYOUT_REG && first->step == 1 &&
                 first->axis == op->coord[t->rank - 1].axis && !op->each[t->rank - 1];
    bool parts = cg->k->purpose == PURPOSE_COMBINE && t->role == TENSOR_WORK;
    bool begins = tile_is_matrix(t) || parts;
    bool aligned = begins && columns->op == EX_CONST && columns->i * bytes % BYTES == 0;
    if (!along || !aligned || op->width || op->add || first->count * bytes > BYTES) return 1;
    return first->count;
}

void cg_store_elements(Cg *cg, const TileOp *op) {
    const TileValue *v = op->args.data[0];
    const CgFragment *f = cg_fragment(cg, v);
    int part[TILE_MAX_AXES] = {0};
    if (cg_adds_diagonals(cg, op)) {
        cg_add_diagonals(cg, op);
        return;
    }
    assert(!(op->add && layout_copies(&f->is)) && "of copies one would have to add");
    Rows rows = rows_of(cg, op, v);
    Dtype t = cg->p->tensors.data[op->tensor].dtype;
    int n = side_by_side(cg, op, v);
    Blk first = layout_copies(&f->is) ? cg_if(cg, cg_is_first_copy(cg, &f->is), "copy") : NULL;
    for (int i = 0; i < f->registers * f->each; i += n) {
        Val x = LLVMGetPoison(cg_vector(rows.type, n));
        for (int c = n - 1; c >= 0; c--) { // ends with the first one's place
            part_of(v, f, i + c, part);
            Val one = cg_write(cg, cg_gpu(cg)->hooks->element(cg, v, v->layout, part), t);
            x = n == 1 ? one : cg_insert(cg, x, one, cg_i32(cg, c));
        }
        Place p = place_of(cg, op, v, &rows, part);
        Blk done = p.in ? cg_if(cg, p.in, "element") : NULL;
        if (op->add)
            cg_add_to(cg, op->tensor, x, p.ptr);
        else
            LLVMSetAlignment(cg_store(cg, x, p.ptr), (unsigned)(n * dtype_bytes(t)));
        if (done) cg_end_if(cg, done);
    }
    if (first) cg_end_if(cg, first);
}

void cg_load_elements(Cg *cg, const TileOp *op) {
    const TileValue *v = op->results.data[0];
    const CgFragment *f = cg_fragment(cg, v);
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    CgValue *value = cg_make(cg, v);
    int part[TILE_MAX_AXES] = {0};
    if (f->each != 1) // its elements lie in pairs
        diag_error(cg->diags, op->span, "%s has no load of single elements of %s", cg->target->name,
                   dtype_name(v->dtype));
    Rows rows = rows_of(cg, op, v);
    int n = side_by_side(cg, op, v);
    for (int i = 0; i < f->registers; i += n) {
        part_of(v, f, i, part);
        Place p = place_of(cg, op, v, &rows, part);
        Val all = cg_load(cg, cg_vector(rows.type, n), p.ptr);
        LLVMSetAlignment(all, (unsigned)(n * dtype_bytes(t->dtype)));
        for (int c = 0; c < n; c++) {
            part_of(v, f, i + c, part);
            Val x = cg_read(cg, n == 1 ? all : cg_extract(cg, all, cg_i32(cg, c)), t->dtype);
            value->e[cg_slot(f, part)] = p.in ? cg_or_zero(cg, p.in, x) : x;
        }
    }
}
