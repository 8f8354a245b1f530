// cost_host.c: schedules of the host and what counting expects of them, in cycles of a core.
#include "passes/schedule/cost.h"

enum {
    HOST_EDGE = 20,      // cycles of each row and each key of a tile, besides the products
    HOST_ROW = 100,      // of each query
    HOST_PORTS = 2,      // vectors of multiply-adds in a cycle
    HOST_BEYOND_L2 = 50, // percent more where a tile's tensors do not stay in half of it
};

static double cycles(const Proposals *to, const CostRows *seen, int rows, int keys) {
    const Target *t = to->target;
    double columns = to->p->D + to->p->Dv;
    double products = (double)rows * keys * columns / t->lanes / HOST_PORTS;
    bool beyond = 4 * columns * (rows + keys) > t->l2_bytes / 2.0;
    CostTiles n = cost_tiles(seen, keys);
    double step = products * (beyond ? 1 + HOST_BEYOND_L2 / 100.0 : 1) + HOST_EDGE * (rows + keys);
    return n.tiles * (n.steps * step + HOST_ROW * rows);
}

void cost_host(Proposals *to) {
    static const int vectors[] = {1, 2, 4, 6, 8}, keys[] = {24, 48, 72, 96, 144, 192};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        int rows = vectors[i] * to->target->lanes;
        CostRows seen = cost_rows(to->p, to->k, rows, to->sizes);
        for (size_t j = 0; j < sizeof keys / sizeof *keys; j++) {
            Knobs knobs = {.said = knobs_of(FORM_HOST), .rows = rows, .keys = keys[j]};
            VEC_PUSH(to->arena, &to->list, ((Candidate){knobs, cycles(to, &seen, rows, keys[j])}));
        }
    }
}
