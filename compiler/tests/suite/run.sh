#!/bin/bash
# Compiles every group of the correctness suite in every mode and level, runs it, and compares what it prints with the same
# program compiled without Trellis. A refused cell must be refused, with its reason and place. The runtime is the test double,
# or, where RUNTIME is `library`, the library beside the command with a store in the process; only there is mode page, which
# compiles nothing of its own.
#
#   run.sh TRELLIS RUNTIME [GROUP...]     TRELLIS_SUITE_MODES and TRELLIS_SUITE_LEVELS choose some
#
# Promises: every failing cell is printed with the command that compiles it. Must never: count a skipped cell as passed.
set -u
command=$1 runtime=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
modes_of_runtime="full heap line"
if [ "$runtime" = library ]; then
    export TRELLIS_STORE=embedded: LD_LIBRARY_PATH=$(dirname "$command")
    if "$command" store run --store embedded: -- true 2> "$work/page"; then
        modes_of_runtime="full heap line page"
    else
        echo "without mode page: $(head -1 "$work/page")"
    fi
else
    export TRELLIS_COMPILER_RUNTIME=$runtime LD_LIBRARY_PATH=$(dirname "$runtime")
fi
groups=("$@")
if [ ${#groups[@]} -eq 0 ]; then
    for file in "$here"/*.c "$here"/*.cpp; do groups+=("$(basename "${file%.*}")"); done
fi
read -ra modes <<< "${TRELLIS_SUITE_MODES:-$modes_of_runtime}"
IFS=, read -ra levels <<< "${TRELLIS_SUITE_LEVELS:--O0,-O2,-O3 -march=native}"

# Compiles and runs one cell; prints why when it is wrong.
cell() {
    local group=$1 mode=$2 level=$3 source=$4 language=$5 name=$6 refused code
    refused=$(awk -v g="$group" -v m="$mode" '$1 == g && $2 == m { $1 = $2 = ""; sub(/^ +/, ""); print }' "$here/refused.txt")
    local compile=("$command" "$language" --mode "$mode" $level "$source" -o "$work/$name" -lm) run=()
    if [ "$mode" = page ]; then
        compile=("$native" $level "$source" -o "$work/$name" -lm -pthread)
        run=("$command" store run --store embedded: --)
    fi
    "${compile[@]}" > "$work/$name.compiled" 2>&1
    code=$?
    if [ -n "$refused" ]; then
        grep -qF -- "$refused" "$work/$name.compiled" && grep -q "$(basename "$source"):[0-9]" "$work/$name.compiled" && [ $code -ne 0 ] && return 0
        echo "FAILED $name: should be refused with \"$refused\""
        head -5 "$work/$name.compiled"
    elif [ $code -ne 0 ]; then
        echo "FAILED $name: does not compile"
        head -12 "$work/$name.compiled"
    else
        local forget=
        [ "$mode" = line ] && ! grep -qE 'pthread|thread>' "$source" && forget=3
        # Processor time, which does not depend on what else runs; a program that only waits is ended, too.
        TRELLIS_DOUBLE_FORGET=$forget prlimit --cpu=60 timeout 1200 "${run[@]}" "$work/$name" argument > "$work/$name.printed" 2> "$work/$name.errors"
        code=$?
        [ $code -eq 0 ] && cmp -s "$work/$name.printed" "$work/$group.native" && return 0
        echo "FAILED $name: status $code"
        diff "$work/$group.native" "$work/$name.printed" | head -6
        head -5 "$work/$name.errors"
    fi
    echo "  ${compile[*]}"
    return 1
}

failed=0 passed=0
for group in "${groups[@]}"; do
    source=$here/$group.c language=cc native=clang-19
    [ -f "$source" ] || { source=$here/$group.cpp; language=c++; native=clang++-19; }
    [ $language = c++ ] && standard=-std=c++17 || standard=
    "$native" $standard -O0 "$source" -o "$work/$group.plain" -lm -pthread && "$work/$group.plain" argument > "$work/$group.native" || exit 2
    for mode in "${modes[@]}"; do
        for level in "${levels[@]}"; do
            name=$group.$mode.${level%% *}
            if cell "$group" "$mode" "$level $standard" "$source" "$language" "$name"; then
                passed=$((passed + 1))
            else
                failed=$((failed + 1))
            fi
        done
    done
done
echo "$passed cells passed, $failed failed"
[ $failed -eq 0 ]
