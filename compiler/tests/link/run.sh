#!/bin/bash
# Programs of several parts: separate compilation, shared libraries, parts that were not compiled by Trellis.
#
#   run.sh TRELLIS RUNTIME
#
# Promises: a part that is not translated is an error with a place in word modes and works in mode line; inline functions
# of an untranslated part never replace translated ones. Must never: look only at whether linking failed, but also why.
set -u
command=$1 runtime=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
export TRELLIS_COMPILER_RUNTIME=$runtime LD_LIBRARY_PATH=$(dirname "$runtime"):$work
failed=0
fail() {
    echo "FAILED $1"
    [ -f out ] && head -8 out
    failed=1
}
# Runs a command that must succeed, or must fail and say something.
works() { "${@:2}" > out 2>&1 || fail "$1"; }
refused() { "${@:3}" > out 2>&1 && fail "$1: not refused"; grep -qF -- "$2" out || fail "$1: does not say \"$2\""; }
prints() { [ "$("${@:3}" 2> out)" = "$2" ] || fail "$1: printed $("${@:3}" 2>&1 | head -3)"; }

cat > shared.hpp << 'TEXT'
#pragma once
#include <cstdlib>
struct Counter {
    int *value = static_cast<int *>(std::malloc(sizeof(int)));
    virtual int add(int by) { return *value += by; }
    virtual ~Counter() { std::free(value); }
};
inline int twice(int *value) { return *value *= 2; }
inline int calls = 0;
TEXT
cat > main.cpp << 'TEXT'
#include "shared.hpp"
#include <cstdio>
int other(Counter &counter);
int main() {
    Counter *counter = new Counter;
    *counter->value = 20;
    calls++;
    int result = other(*counter) + twice(counter->value) + counter->add(1);
    std::printf("%d %d\n", result, calls);
    delete counter;
}
TEXT
cat > other.cpp << 'TEXT'
#include "shared.hpp"
int other(Counter &counter) { calls++; return counter.add(1) + twice(counter.value); }
TEXT
cat > plain.cpp << 'TEXT'
#include "shared.hpp"
int unrelated() { int v = 1; Counter *c = new Counter; *c->value = twice(&v); int r = c->add(1); delete c; return r; }
TEXT
clang++-19 -O0 -c plain.cpp -o plain.o && clang++-19 -O0 -c other.cpp -o native.o || exit 2

for mode in full heap line; do
    cxx=("$command" c++ --mode $mode -O0)
    works "$mode separate" "${cxx[@]}" -c main.cpp -o main.o
    works "$mode separate" "${cxx[@]}" -c other.cpp -o other.o
    works "$mode link" "${cxx[@]}" main.o other.o -o program
    prints "$mode program" "232 2" ./program
    # The untranslated copies of twice(), Counter::add and Counter's vtable come first and must not be taken.
    works "$mode beside plain code" "${cxx[@]}" plain.o main.o other.o -o program
    prints "$mode beside plain code" "232 2" env TRELLIS_DOUBLE_PLAIN=1 ./program
    works "$mode library" "${cxx[@]}" -shared -fPIC other.cpp -o libother.so
    works "$mode with library" "${cxx[@]}" main.o -L. -lother -o program
    prints "$mode with library" "232 2" ./program
    if [ $mode = line ]; then
        works "line with native part" "${cxx[@]}" main.o native.o -o program
        prints "line with native part" "232 2" env TRELLIS_DOUBLE_PLAIN=1 ./program
    else
        refused "$mode with native part" 'main.cpp:8: in function `main`: `other(Counter&)` was not compiled by trellis cc' \
            "${cxx[@]}" main.o native.o -o program
        refused "$mode with other mode" "undefined" "$command" c++ --mode $([ $mode = full ] && echo heap || echo full) main.o other.o
    fi
done

cat > uses.c << 'TEXT'
#include <stdio.h>
int outside(int number);
int main(void) { printf("%d\n", outside(20)); }
TEXT
echo 'int outside(int number) { return number + 1; }' > outside.c
clang-19 -c outside.c -o outside.o || exit 2
refused "unknown function" 'uses.c:3: in function `main`: `outside` was not compiled' "$command" cc --mode heap uses.c outside.o -o program
echo "native outside" > list.txt
works "assumed native" "$command" cc --mode heap --assume-native list.txt uses.c outside.o -o program
prints "assumed native" 21 ./program
echo "nativ outside" > list.txt
refused "bad list" "list.txt:1: \`nativ outside\` is not a line of a list" "$command" cc --mode heap --assume-native list.txt uses.c outside.o -o program

# A program's own function wins over a wrapper of the same name, in another file, too.
echo 'int getline(char *text, int room) { text[0] = 42; return room + 1; }' > own.c
cat > calls.c << 'TEXT'
#include <stdlib.h>
#include <string.h>
extern int printf(const char *, ...);
int getline(char *text, int room);
int main(void) { char *text = malloc(9); int n = getline(text, 8); printf("%d %d\n", n, text[0]); free(text); }
TEXT
for mode in full heap line; do
    works "$mode own getline" "$command" cc --mode $mode calls.c own.c -o program
    prints "$mode own getline" "9 42" ./program
done

# What build systems ask.
works "version" "$command" cc --version
works "macros" "$command" cc -dM -E -x c /dev/null
works "dependencies" "$command" cc --mode heap -MD -MF deps -c uses.c -o uses.o
[ -s deps ] || fail "dependencies were not written"
printf -- '--mode heap\n-c "uses.c" -o uses2.o\n' > response
works "response file" "$command" cc @response
works "counts" "$command" cc --mode heap --count -c uses.c -o uses.o
grep -qE '^main +[0-9]+ +[0-9]+ +\+' out || fail "counts are not printed"
works "standard input" "$command" cc --mode full -x c - -c -o stdin.o < outside.c
[ $failed -eq 0 ] && echo "all links are as they should be"
exit $failed
