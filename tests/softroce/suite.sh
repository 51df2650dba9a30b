#!/usr/bin/env bash
# Runs a list of commands one after the other, each with a limit, so that they share one virtual machine.
#
#   bash tests/softroce/run.sh bash tests/softroce/suite.sh LIST
#
# Each line of the file LIST is a name, a limit in seconds, and a command. Each command gets a line about its end and the time it took;
# all are run, whatever becomes of the earlier ones.
#
# Exit status: 0 when all passed, else 1.
set -uo pipefail

[ $# -eq 1 ] && [ -s "$1" ] || { echo "usage: suite.sh LIST" >&2; exit 1; }

results=()
failed=0
while read -r name limit command; do
    [ -n "$command" ] || continue
    printf -- '-- %s\n' "$name"
    began=$SECONDS
    # A time of grace, and then the hard way: a test that hangs must not take the others with it.
    timeout --kill-after=5 "$limit" bash -c "$command" </dev/null
    status=$?
    took=$((SECONDS - began))
    case $status in
    0) results+=("$name: passed in $took s") ;;
    124 | 137) results+=("$name: FAILED: took longer than $limit s") failed=1 ;;
    *) results+=("$name: FAILED with status $status after $took s") failed=1 ;;
    esac
    printf -- '-- %s\n' "${results[-1]}"
done <"$1"
printf '\n'
printf 'softroce: %s\n' "${results[@]}"
exit $failed
