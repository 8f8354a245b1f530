#!/bin/sh
# hsaco.sh ATTNC [FILE.attn...]: compiles every attention (of stdlib, and causal at other widths) for every AMD target, as a file and as text.
# Fails if one does not compile, or if the metadata of the code object shows scratch memory or spilled registers.
# Ends with `N passed, N failed`.
attnc=$1
shift
widths=
[ $# -gt 0 ] || { set -- stdlib/*.attn; widths='-DD=144,-DDv=144 -DD=160,-DDv=160 -DD=576,-DDv=512 --dtype=f32,-DD=288,-DDv=256'; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

# The fields of the metadata that must be 0 and are not.
excess() {
    sed -nE 's/^ *(- )?\.(private_segment_fixed_size|vgpr_spill_count): *([1-9][0-9]*)$/\2 \3/p' "$1"
}
check() { # check FILE OPTION...
    name="$*"
    if ! "$attnc" "$@" -o "$dir/a.hsaco" 2>"$dir/err" || ! "$attnc" "$@" -o "$dir/a.s" 2>"$dir/err"; then
        echo "FAILED: $name: $(head -n 1 "$dir/err")"
    elif ! grep -q 'vgpr_spill_count' "$dir/a.s"; then
        echo "FAILED: $name: there is no metadata"
    elif [ -n "$(excess "$dir/a.s")" ]; then
        echo "FAILED: $name: $(excess "$dir/a.s" | tr '\n' ' ')"
    else
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
}
for file; do
    grep -q '^attention' "$file" || continue
    for target in gfx90a gfx942 gfx1100; do check "$file" --target="$target"; done
done
for target in gfx90a gfx942; do
    for width in $widths; do check stdlib/causal.attn --target="$target" $(echo "$width" | tr , ' '); done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
