# pool.sh, for other scripts to read in: commands side by side, as many at a time as there are cores.
#
#   start COMMAND...   waits for a core, then runs the command in the background: the next one of $started
#   finish             waits for all
#
# What the command N printed is in $pool/N.log then, and its exit status in $pool/N.status.
pool=$(mktemp -d) || exit 1
started=0
mkfifo "$pool/cores"
exec 9<>"$pool/cores" # a line for each core that is free
seq "$(nproc 2>/dev/null || echo 2)" >&9
start() {
    read -r core <&9
    started=$((started + 1))
    (
        ("$@") >"$pool/$started.log" 2>&1 9>&-
        echo $? >"$pool/$started.status"
        echo "$core" >&9
    ) &
}
finish() { wait; }
