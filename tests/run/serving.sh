#!/bin/sh
# serving.sh ATTNC: layouts ragged and paged from outside: sizes, index tensors, messages, and what comes out against dense runs.
attnc=$(realpath "$1")
top=$(pwd)
python=$("$top/tests/tools.sh" python3 numpy) || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
export ATTNC_CACHE="$dir/cache"
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() {
    echo "FAILED: $*"
    sed 's/^/    /' "$dir/err" | head -n 5
    failed=$((failed + 1))
}
gives() {
    want=$1
    shift
    "$attnc" "$@" >out 2>err
    is=$?
    if [ $is -eq "$want" ]; then ok; else bad "attnc $*: status $is, expected $want"; fi
}
says() { if grep -qF -- "$2" "$1"; then ok; else bad "$1 lacks '$2' after the last command"; fi; }

cat >every.attn <<'ATTN'
// Inputs of every kind: of keys, of queries, of sequences, of heads, and of positions.
import std.normalization;
import std.mask;
attention every {
    dim D = 16, Dv = 8;
    input doc: i32[B, Sk];
    input bias: f32[B, H, Sk];
    input gate: f32[B, Sq, H];
    input slope: f32[H];
    input scale: f32[B];
    input shift: f32[Sk];
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, i, j) = s * scale[b] + bias[b, h, j] + slope[h] * f32(j - i) * 0.01 + shift[j];
    mask(b, h, i, j) = causal(i, j) && doc[b, j] != 1;
    normalize(s) = softmax(s);
    output(o, b, h, i, d) = o * gate[b, i - q_offset, h];
}
ATTN

# ---- sizes and index tensors
run="run every.attn"
gives 0 $run --layout=paged --shape=B=3,H=8,Hkv=2,Tq=3,page=16,table=8
says err 'paged: B=3 H=8 Hkv=2 Tq=3 max_q=1 pages=24 page=16 table=8'
says out 'o [3, 8, 8]'
says out 'lse [3, 8]'
gives 0 $run --layout=paged --in kv_len=37,0,100 --shape=H=4,page=5,Tq=7 # B by kv_len; queries are not equal in number
says err 'paged: B=3 H=4 Hkv=4 Tq=7 max_q=7 pages=156 page=5 table=52'
gives 0 $run --layout=paged:5 --in kv_len=37,0 --in q_start=0,3,4 --in q_offset=34,0 --shape=Tq=9
says out '40 not finite' # 5 rows are nobody's
gives 0 $run --layout=ragged --in q_start=0,3,3,9 --shape=Tk=40,H=2
says err 'ragged: B=3 H=2 Hkv=2 Tq=768 max_q=768 Tk=40'
gives 0 $run --layout=ragged --shape=B=3,Tq=20,Tk=31,max_q=7 -g
gives 0 $run --layout=paged --in page_table=0..5 --shape=B=4,table=3,pages=6,page=7 --in kv_len=0..25
gives 0 $run --layout=paged --in page_table=-3..90 --shape=B=4,table=3,pages=6,page=7 --in kv_len=-9..95
gives 0 $run --layout=paged --shape=B=0
gives 0 $run --layout=paged --shape=B=2,pages=0

# ---- gradients of packed sequences
sed 's/gate: f32\[B, Sq, H\]/& grad/; s/bias: f32\[B, H, Sk\]/& grad/; s/slope: f32\[H\]/& grad/' every.attn >learned.attn
for what in "--in q_start=0,37,37,38,100 --in kv_start=3,40,41,41,120 --shape=H=4,Hkv=2,Tq=103,Tk=123" "--shape=B=3,Tq=20,Tk=31,max_q=2" \
    "--in q_start=5,-3,90,7 --shape=Tq=9,Tk=40" "--shape=B=0" "--in q_start=0,70,130 --in kv_start=0,70,130 --in q_offset=3,-4 --shape=Tq=130,Tk=130,max_q=70 --dtype=bf16"; do
    gives 0 check learned.attn --layout=ragged --phase=fwd,bwd $what
    says out 'good: every'
done
gives 1 learned.attn --layout=paged --phase=fwd,bwd -o x.ptx
says err 'no backward in layout paged'
gives 1 "$top/stdlib/gla.attn" --layout=ragged --phase=fwd,bwd -o x.ptx
says err 'no backward of recurrences in layout ragged'

# ---- what is wrong
gives 2 $run --layout=page
says err 'dense, ragged, paged, or paged:N'
gives 2 $run --layout=ragged:4
gives 2 $run --layout=paged:0
gives 2 $run --layout=paged --shape=Sk=40
says err 'in layout paged each sequence has its own Sk: --in kv_len=... says them'
gives 2 $run --layout=ragged --shape=Sq=40
says err '--in q_start=...'
gives 2 $run --layout=ragged --shape=pages=4
says err 'every has no size pages'
gives 1 $run --layout=paged:5 --shape=page=6
says err 'page is 6 (from --shape), this kernel is for pages of 5 (--layout=paged:5)'
gives 1 $run --layout=paged --in kv_len=1,2,3 --shape=B=2
says err 'B is 3 (from kv_len) and 2 (from --shape)'
gives 1 $run --layout=paged --in kv_len=1,2,3 --in q_start=0,1,2
says err 'B is 3 (from kv_len) and 2 (from q_start)'
gives 2 $run --layout=paged --in kv_start=0,4
says err 'every has no such input'
gives 2 $run --layout=paged --in kv_len=1.5,2
gives 2 bench every.attn --dry --target=sm_80 --layout=paged
says err 'layout dense only'
gives 2 tune every.attn --layout=paged

# ---- recurrences: a state for each sequence, in slots of a pool
cat >fade.attn <<'ATTN'
recurrence fade {
    dim D = 16, Dv = 8;
    input log_decay: f32[B, H, S];
    input scale: f32[S, H];
    query(q, b, h, t) = q * scale[t, h];
    decay(b, h, t) = exp(log_decay[b, h, t]);
}
ATTN
run="run fade.attn --in log_decay=-1..0"
gives 0 $run --layout=ragged --in q_start=0,3,3,9 --shape=H=4,Hk=2,slots=5
says err 'ragged: B=3 H=4 Hq=4 Hk=2 Hv=4 Tq=768 max_q=768 slots=5'
says out 'o [768, 4, 8]'
says out 'state [5, 4, 16, 8]'
for what in "--shape=B=3,Tq=20,H=2" "--shape=B=5,Tq=5,slots=9,H=2" "--in q_start=5,-3,90,7 --shape=Tq=9" "--shape=B=0" \
    "--shape=B=4,Tq=90,slots=7 --in state_index=-4,2,100,5 --in state0=-1..1 --dtype=bf16"; do
    gives 0 check fade.attn --in log_decay=-1..0 --layout=ragged $what
    says out 'good: fade'
done
gives 0 bench fade.attn --layout=ragged --shape=B=4,Tq=80,slots=6
gives 1 $run --layout=ragged --shape=B=2,slots=0
says err 'slots = 0 (from --shape), and there are sequences'
gives 2 $run --layout=ragged --shape=S=40
says err 'in layout ragged each sequence has its own S: --in q_start=... says them'
gives 1 $run --layout=paged
says err 'no recurrences in layout paged: their states are slots of a pool in layout ragged'

# ---- what comes out: of each sequence what a dense run gives
"$python" - "$attnc" "$top" >err 2>&1 <<'PYTHON'
import subprocess, sys, numpy as np

attnc, r = sys.argv[1], np.random.default_rng(1)
H, HKV, D, DV, PAGE, PAGES = 4, 2, 16, 8, 5, 11
table = r.integers(0, PAGES, (4, 3)).astype("i4")
lens, starts = np.array([7, 0, 15, 1], "i4"), np.array([1, 3, 3, 8, 9], "i4")
Tq = 10
rows = [[table[b, j // PAGE] * PAGE + j % PAGE for j in range(lens[b])] for b in range(4)]
flat = {n: r.standard_normal((PAGES * PAGE, *s), dtype="f4") for n, s in dict(k=(HKV, D), v=(HKV, DV), bias=(H,)).items()}
flat["doc"] = r.integers(0, 5, PAGES * PAGE).astype("i4")
queries = {n: r.standard_normal((Tq, *s), dtype="f4") for n, s in dict(q=(H, D), gate=(H,)).items()}
slope, scale, shift = r.standard_normal(H, "f4"), r.standard_normal(4, "f4"), r.standard_normal(15, "f4")


def attend(options, arrays, out):
    for n, x in arrays.items():
        np.save(n + ".npy", np.ascontiguousarray(x))
    named = [a for n in arrays for a in ("--in", f"{n}={n}.npy")] + [a for n in out for a in ("--out", f"{n}={n}.npy")]
    subprocess.run([attnc, "run", "every.attn", *options, *named], check=True, stdout=2)
    return [np.load(n + ".npy") for n in out]


paged = {n: x.reshape(PAGES, PAGE, *x.shape[1:]) for n, x in flat.items()}
o, lse = attend(["--layout=paged"], {**paged, **queries, "slope": slope, "scale": scale, "shift": shift, "page_table": table, "kv_len": lens, "q_start": starts}, ("o", "lse"))
packed = {n: np.concatenate([x[i] for i in rows]) for n, x in flat.items()}
ends = np.concatenate([[0], np.cumsum(lens)]).astype("i4")
o2, lse2 = attend(["--layout=ragged"], {**packed, **queries, "slope": slope, "scale": scale, "shift": shift, "kv_start": ends, "q_start": starts}, ("o", "lse"))
assert np.allclose(o, o2, 1e-5, 1e-5, equal_nan=True) and np.allclose(lse, lse2, 1e-5, 1e-5, equal_nan=True)
assert np.isnan(o[[0, 9]]).all() and np.isnan(lse[[0, 9]]).all()
for b in range(4):
    if starts[b] == starts[b + 1]:
        continue
    mine = slice(starts[b], starts[b + 1])
    dense = {n: np.moveaxis(x[rows[b]], 0, -2 if n in "kv" else -1)[None] for n, x in flat.items()}
    dense.update(q=np.moveaxis(queries["q"][mine], 0, 1)[None], gate=queries["gate"][mine][None], slope=slope, scale=scale[b : b + 1], shift=shift[: lens[b]])
    want, want_lse = attend([], dense, ("o", "lse"))
    assert np.allclose(o[mine], np.moveaxis(want[0], 0, 1), 1e-5, 1e-5), b
    assert np.allclose(lse[mine], want_lse[0].T, 1e-5, 1e-5), b
PYTHON
if [ $? -eq 0 ]; then ok; else bad "sequences against dense runs"; tail -n 3 err; fi

# ---- k and v in 8 bits
cat >stored.attn <<'ATTN'
attention stored {
    dim D = 16;
    input scale: f32;
    value(x, b, h, j, d) = x * scale;
    score(q, k) = dot(q, k);
    normalize(s) = s;
}
ATTN
"$python" - "$attnc" >err 2>&1 <<'PYTHON'
import struct, subprocess, sys, numpy as np

codes = np.arange(256, dtype="u1")
half = (codes.astype("u2") << 8).view("f2").astype("f4")
magnitude = [(8 + c % 8) * 2.0 ** (c // 8 - 10) if c >= 8 else c * 2.0**-9 for c in range(127)] + [np.nan]
values = {"e4m3": np.array(magnitude + [-x for x in magnitude], "f4"), "e5m2": half, "i8": codes.view("i1").astype("f4")}
for name, want in values.items():  # of each code the value: a batch entry has one key, whose weight is 1
    one = {"e4m3": 0x38, "e5m2": 0x3C, "i8": 1}[name]
    q, k = np.zeros((256, 1, 1, 16), "f4"), np.zeros((256, 1, 1, 16), "u1")
    q[..., 0], k[..., 0] = 1, one
    v = np.repeat(codes, 16).reshape(256, 1, 1, 16)
    np.save("q.npy", q)
    for file, x in (("k", k), ("v", v)):
        np.save(file + ".npy", x.view("i1") if name == "i8" else x)
    if name == "e5m2":  # as ml_dtypes has them saved
        np.save("v.npy", v.view("V1"))
    for dtype in ("f32", "bf16", "f16"):
        subprocess.run([sys.argv[1], "run", "stored.attn", f"--kv-dtype={name}", f"--dtype={dtype}", "--in=scale=1", *(f"--in={n}={n}.npy" for n in "qkv"), "--out=o=o.npy"], check=True)
        np.testing.assert_array_equal(np.load("o.npy"), np.repeat(want, 16).reshape(256, 1, 1, 16))
# Other files are rounded to nearest even and saturate.
x = np.zeros((1, 1, 1, 16), "f4")
x[..., :8] = [17, 19, 1000, -1000, 2.0**-10, 3 * 2.0**-10, 0.3, -0.0]
np.save("q.npy", np.eye(1, 16, dtype="f4").reshape(1, 1, 1, 16))
np.save("k.npy", np.eye(1, 16, dtype="f4").reshape(1, 1, 1, 16))
np.save("v.npy", x)
for name, want in {"e4m3": [16, 20, 448, -448, 0, 2.0**-8, 0.3125, 0], "e5m2": [16, 20, 1024, -1024, 2.0**-10, 3 * 2.0**-10, 0.3125, 0], "i8": [17, 19, 127, -128, 0, 0, 0, 0]}.items():
    subprocess.run([sys.argv[1], "run", "stored.attn", f"--kv-dtype={name}", "--in=scale=1", *(f"--in={n}={n}.npy" for n in "qkv"), "--out=o=o.npy"], check=True)
    np.testing.assert_array_equal(np.load("o.npy").ravel()[:8], np.array(want, "f4"))
PYTHON
if [ $? -eq 0 ]; then ok; else bad "k and v in 8 bits"; tail -n 3 err; fi
gives 2 run stored.attn --kv-dtype=f8 --in scale=1
says err "--kv-dtype: bad value 'f8': it takes f32, f16, bf16, e4m3, e5m2 or i8"
for types in f32:f32 f32:f16 f32:bf16 f16:f16 f16:bf16 bf16:f16; do
    gives 0 check stored.attn "--dtype=${types%:*}" "--kv-dtype=${types#*:}" --in scale=1
    says out 'good: '
done
gives 1 check stored.attn --dtype=bf16 --kv-dtype=f32 --in scale=1
says err 'no kernel of host has k and v in f32 beside q in bf16: --kv-dtype is the type of q, e4m3, e5m2 or i8'
gives 0 stored.attn --kv-dtype=bf16 --dtype=bf16 --phase=fwd,bwd -o x.ptx
gives 1 stored.attn --kv-dtype=f16 --dtype=bf16 -o x.ptx
says err 'has k and v in f16 beside q in bf16'
gives 1 check stored.attn --kv-dtype=bf16 --phase=fwd,bwd --in scale=1
says err 'no backward with --kv-dtype=bf16 beside --dtype=f32'
gives 1 stored.attn --kv-dtype=e4m3 --phase=fwd,bwd -o x.ptx
says err 'no backward with --kv-dtype=e4m3: numbers of 8 bits have no gradients'
gives 1 "$top/stdlib/mamba2.attn" --kv-dtype=i8 -o x.ptx
says err 'keeps a state and no keys: --kv-dtype=i8 is for attentions'
gives 1 stored.attn --kv-dtype=i8 --dtype=tf32 --target=sm_80 -o x.ptx
says err '--kv-dtype=i8 goes with --dtype=f32, f16 or bf16, not with tf32'
gives 0 stored.attn --kv-dtype=i8 -o x.o # an artifact knows what k holds
gives 0 run x.o --in scale=2
says err 'k and v i8'
gives 2 run x.o --kv-dtype=i8 --in scale=2
for options in '--layout=ragged --kv-dtype=e5m2' '--layout=paged --kv-dtype=e4m3' '--kv-dtype=i8 --parts=3'; do
    gives 0 check "$top/tests/regress/stored_in_8_bits.attn" $options --shape=B=3,H=4,Hkv=2 --in k_scale=0.5..2.0 --in v_scale=0.5..2.0
done

# ---- the library against the reference
cd "$top" || exit 1
for line in $("$top/tests/serving.sh" some $(grep -l '^attention' stdlib/*.attn) tests/run/mla.attn tests/run/row_inputs.attn tests/regress/clauses.attn | tr ' ' '|'); do
    set -- $(echo "$line" | tr '|' ' ')
    file=$1 cases=$2
    shift 2
    "$attnc" check "$file" "$@" >"$dir/out" 2>"$dir/err"
    if [ "$(grep -cE '^good( in part)?: ' "$dir/out")" -eq "$cases" ]; then ok; else
        bad "attnc check $file $*"
        grep -vE '^good( in part)?: ' "$dir/out"
    fi
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
