#!/bin/sh
# assemble.sh ATTNC: assembles the library's PTX for sm_80, sm_90 and sm_90a, by the rules of tests/ptxas.sh. Also checks that these rules find bad PTX.
attnc=$1
. tests/pool.sh
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir" "$pool"' EXIT

holds() { # holds NAME COMMAND...: side by side; a file of each is $dir/$started
    what=$1
    shift
    start "$@"
    echo "$what" >"$pool/$started.name"
}
fails() { ! "$@"; }
assembles_for() { # assembles_for TARGETS FILE OPTION...: one variant's PTX for the first target, for all of them
    targets=$1
    shift
    "$attnc" -O3 --no-cache "$@" --target="${targets%% *}" --dtype=bf16 -o "$dir/$started.ptx" || return
    for sm in $targets; do tests/ptxas.sh "$dir/$started.ptx" "$sm" || return; done
}
assembles() { assembles_for sm_90a "$@"; }

for file in stdlib/*.attn; do
    grep -qE '^(attention|recurrence)' "$file" || continue
    holds "$file" assembles "$file"
    holds "$file on sm_80 and sm_90" assembles_for 'sm_80 sm_90' "$file"
    grep -q '^attention' "$file" || continue
    holds "$file, D=128" assembles "$file" -DD=128
done
for name in softmax causal relu; do holds "$name, D=256" assembles stdlib/$name.attn -DD=256; done
for dims in '32 32' '96 96' '192 192' '192 128' '128 512' '64 264' '576 512'; do
    holds "causal, $dims" assembles stdlib/causal.attn -DD="${dims% *}" -DDv="${dims#* }"
done
for dims in '64 264' '128 320'; do
    holds "causal on sm_80, $dims" assembles_for sm_80 stdlib/causal.attn -DD="${dims% *}" -DDv="${dims#* }"
done
for dims in 64 128 256; do holds "causal in ragged batches, $dims" assembles stdlib/causal.attn --layout=ragged -DD=$dims -DDv=$dims; done
for layout in paged paged:16; do
    for name in causal attention_sink; do holds "$name, $layout" assembles stdlib/$name.attn --layout=$layout -DD=128 -DDv=128; done
done
holds 'a dense bias' assembles tests/regress/dense_bias.attn -DD=128 -DDv=128
holds 'a dense bias on sm_80' assembles_for sm_80 tests/regress/dense_bias.attn -DD=64 -DDv=64
holds 'no room for what is stored, nor for an even part of it' assembles tests/regress/score_root.attn -DD=96 -DDv=96
for sm in sm_80 sm_90a; do # v in k: 576 channels, or 512 and 64 apart
    holds "MLA on $sm" assembles_for $sm tests/run/mla.attn -DD=512 -DDv=512
    holds "clauses of q, k and v on $sm" assembles_for $sm tests/regress/clauses.attn -DD=64 -DDv=64
    for type in e4m3 i8; do
        holds "$type keys and values on $sm" assembles_for $sm tests/regress/stored_in_8_bits.attn --kv-dtype=$type -DD=64 -DDv=64
    done
    holds "a shared latent on $sm" assembles_for $sm tests/run/share.attn -DD=576 -DDv=512
done
for form in keys=32,stages=4 keys=64,stages=2,producer_registers=56; do # weights a step late, and not
    holds "MLA, $form" assembles tests/run/mla.attn -DD=512 -DDv=512 --schedule=$form
    holds "a shared latent, $form" assembles tests/run/share.attn -DD=576 -DDv=512 --schedule=$form
done
for name in retnet gla gated_deltanet; do holds "$name, forward and backward on sm_80" assembles_for sm_80 stdlib/$name.attn --phase=fwd,bwd; done
holds 'kda, the backward' assembles stdlib/kda.attn --phase=bwd
for name in softmax causal softcap; do holds "$name, D=256, the backward" assembles stdlib/$name.attn --phase=bwd -DD=256; done
for n in 2 3; do holds "causal, 192 128, the backward, warpgroups=$n" assembles stdlib/causal.attn --phase=bwd -DD=192 -DDv=128 --schedule=warpgroups=$n; done
holds 'a table of distances, the backward by two warpgroups' assembles stdlib/relative_bias.attn --phase=bwd --schedule=warpgroups=2
holds 'a backward with more numbers of a row than a kernel has tensor maps for' assembles tests/regress/weighted_scores.attn --phase=fwd,bwd
for sm in sm_80 sm_90a; do
    for name in no_gradient steps_apart norm_alone level_scores; do holds "gradients of $name on $sm" assembles_for $sm tests/regress/$name.attn --phase=fwd,bwd; done
done
holds 'numbers of a row that are sums over two scores of a pair' assembles_for sm_80 tests/regress/two_softmaxes.attn --phase=fwd,bwd
holds 'rows of gradients that fill shared memory' assembles_for sm_80 tests/regress/names_of_parts.attn --phase=fwd,bwd -DD=256 -DDv=256
for name in retention relative_bias; do holds "$name, 256 512" assembles stdlib/$name.attn -DD=256 -DDv=512; done
# Threads walk a channel axis in pieces of four elements: each of them reads its own number of a vector along it, so that four loads more
# stand in each piece than without the vector. (One alone serves all four where it is read at the piece's place.)
loads() { "$attnc" "$1" --target=sm_80 --dtype=bf16 -o "$dir/loads.ptx" && grep -c 'ld\.shared\.f32' "$dir/loads.ptx"; }
sed '/input gate/d; s/gate\[h, d\]/0.5/' tests/run/norm_of_values.attn >"$dir/plain.attn"
more=$(($(loads tests/run/norm_of_values.attn) - $(loads "$dir/plain.attn")))
holds "a vector in pieces: $more loads" test "$more" -gt 0 -a $((more % 4)) -eq 0
# A tile program's algorithm, scheduled pass by pass.
scheduled() { # scheduled FILE TARGET
    x=$dir/$started
    sed "s/ target host / target $2 /" "$1" >"$x.0.tile"
    "$attnc" "$x.0.tile" --pass=tile -o "$x.1.tile" && "$attnc" "$x.1.tile" --pass=classify -o "$x.2.tile" &&
        "$attnc" "$x.2.tile" --pass=schedule -o "$x.3.tile" && "$attnc" "$x.3.tile" --emit=asm -o "$x.ptx" && tests/ptxas.sh "$x.ptx" "$2"
}
holds 'packed rows, a tile program, on sm_80' scheduled tests/tile/packed.tile sm_80
for sm in sm_80 sm_90a; do
    for name in mamba2 gated_delta; do holds "$name, a tile program, on $sm" scheduled tests/tile/$name.tile $sm; done
done

# Bad PTX, made from good: no registers for the consumers (spills and serialized products), a product that is read before its
# wait, and four blocks where there is room for two.
"$attnc" -O3 --no-cache stdlib/causal.attn -DD=128 --target=sm_90a --dtype=bf16 -o "$dir/good.ptx"
holds 'causal' tests/ptxas.sh "$dir/good.ptx" sm_90a
sed '/setmaxnreg/d' "$dir/good.ptx" >"$dir/few.ptx"
holds 'spills are noticed' fails tests/ptxas.sh "$dir/few.ptx" sm_90a
holds 'spills are told' sh -c "tests/ptxas.sh '$dir/few.ptx' sm_90a | grep -q 'up to [1-9][0-9]* bytes spilled'"
holds 'and what comes of them' sh -c "tests/ptxas.sh '$dir/few.ptx' sm_90a | grep -q C7512"
sed '/wgmma.wait_group.sync.aligned 1;/d' "$dir/good.ptx" >"$dir/early.ptx"
holds 'serialized products are noticed' fails tests/ptxas.sh "$dir/early.ptx" sm_90a
holds 'serialized products are told' sh -c "tests/ptxas.sh '$dir/early.ptx' sm_90a | grep -q C7514"
"$attnc" -O3 --no-cache stdlib/causal.attn -DD=128 --target=sm_80 --dtype=bf16 -o "$dir/good_80.ptx"
sed 's/^\.minnctapersm .*/.minnctapersm 4/' "$dir/good_80.ptx" >"$dir/four.ptx"
holds 'spills on sm_80 are noticed' fails tests/ptxas.sh "$dir/four.ptx" sm_80
echo 'no PTX' >"$dir/none.ptx"
holds 'what is no PTX is refused' fails tests/ptxas.sh "$dir/none.ptx" sm_90a

finish
failed=0
for i in $(seq "$started"); do
    [ "$(cat "$pool/$i.status")" = 0 ] && continue
    echo "FAILED: $(cat "$pool/$i.name")"
    head -n 5 "$pool/$i.log"
    failed=$((failed + 1))
done
echo "$((started - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
