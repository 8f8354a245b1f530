// columns.c: fragments whose rows a tensor has side by side, as those of a recurrence's state, or whose columns' places are
// said one by one.
//
// In: such a load or store. Out: moves of single elements; outside the
// tensor a load gives 0, and nothing is stored. A state0 that is left out is 0.
#include "codegen/gpu/gpu.h"

#include <assert.h>

typedef struct Place {
    Val ptr; // in global memory; of what is outside, the tensor's first element
    Val in;  // i1
} Place;

static Val number_at(Cg *cg, const TileOp *op, const TileValue *v, int d, const int *part,
                     Val *in) {
    int axis = op->coord[d].axis;
    if (op->each[d]) return cg_i32(cg, 0); // added for the axis
    Val first = cg_uniform(cg, op->coord[d].at);
    if (axis < 0) return first;
    Val i = cg_times(cg, first, cg->k->axes[axis].extent);
    i = cg_add(cg, i, cg_thread_part(cg, v->layout, axis));
    i = cg_plus(cg, i, part[axis]);
    bool some = op->width && d == cg->p->tensors.data[op->tensor].rank - 1;
    Val has = cg_less(cg, i, some ? cg_i32(cg, op->width) : cg_extent(cg, op->tensor, d));
    *in = cg_and(cg, *in, has);
    return i;
}

static Place place_of(Cg *cg, const TileOp *op, const TileValue *v, const int *part) {
    const TileTensor *t = &cg->p->tensors.data[op->tensor];
    Val at = cg_i64(cg, 0), in = LLVMConstInt(cg->i1, 1, false);
    for (int d = 0; d < t->rank; d++) {
        Val i = cg_sext(cg, number_at(cg, op, v, d, part, &in), cg->i64);
        at = cg_add(cg, at, cg_mul(cg, i, cg_stride(cg, op->tensor, d)));
    }
    Val places[TILE_MAX_AXES] = {NULL};
    for (int i = 0; i < v->rank; i++) {
        int axis = v->axis[i];
        if (!tile_goes_by_element(op, axis)) continue;
        Val pos = cg_add(cg, cg_element_begin(cg, op, axis), cg_thread_part(cg, v->layout, axis));
        places[axis] = pos = cg_plus(cg, pos, part[axis]);
        at = cg_add(cg, at, cg_element_offset(cg, op, axis, pos));
        in = cg_and(cg, in, cg_less(cg, pos, cg_axis_size(cg, axis)));
    }
    if (tile_scatters(op)) at = cg_add(cg, at, cg_scatter_offset(cg, op, places));
    at = cg_select(cg, in, at, cg_i64(cg, 0));
    Val base = cg_global(cg, cg_origin(cg, op));
    return (Place){cg_element(cg, cg_dtype(cg, t->dtype), base, at), in};
}

bool cg_goes_by_columns(Cg *cg, const TileOp *op, const TileValue *v) {
    int last = op->coord[cg->p->tensors.data[op->tensor].rank - 1].axis;
    if (v->rank != 2 || v->home != HOME_FRAGMENT) return false;
    const CgFragment *f = cg_fragment(cg, v);
    return f->rows == last || tile_goes_by_element(op, f->columns);
}

static void part_of(const TileValue *v, const CgFragment *f, int i, int *part) {
    for (int a = 0; a < v->rank; a++)
        part[v->axis[a]] = layout_part(&f->is, LAYOUT_REG, v->axis[a], i);
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
    for (int i = 0; i < f->registers * f->each; i++) {
        part_of(v, f, i, part);
        Place p = place_of(cg, op, v, part);
        Val x = cg_write(cg, cg_gpu(cg)->hooks->element(cg, v, v->layout, part),
                         cg->p->tensors.data[op->tensor].dtype);
        Blk done = cg_if(cg, p.in, "element");
        if (op->add)
            cg_gpu(cg)->hooks->add(cg, x, p.ptr);
        else
            cg_store(cg, x, p.ptr);
        cg_end_if(cg, done);
    }
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
    for (int i = 0; i < f->registers; i++) {
        part_of(v, f, i, part);
        Place p = place_of(cg, op, v, part);
        Val x = cg_load(cg, cg_dtype(cg, t->dtype), p.ptr);
        value->e[cg_slot(f, part)] = cg_or_zero(cg, p.in, cg_read(cg, x, t->dtype));
    }
}
