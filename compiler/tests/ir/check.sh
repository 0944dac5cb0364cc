#!/bin/bash
# Translates a text in every mode that it has expectations for, verifies the result, and compares.
#
#   check.sh OPT FILECHECK PLUGIN TEXT
#
# Expectations are lines `; FULL: ...`, `; HEAP: ...`, `; LINE: ...`; `; FULL-ERROR: ...` means that the mode refuses the text with that
# message. Must never: pass a text that has no expectation.
set -u
opt=$1 filecheck=$2 plugin=$3 text=$4
checked=0
for mode in full heap line; do
    prefix=$(echo $mode | tr a-z A-Z)
    if grep -qE "^; $prefix-ERROR" "$text"; then
        if "$opt" -load-pass-plugin="$plugin" -passes="trellis<$mode>" -disable-output "$text" > /dev/null 2> "/tmp/trellis-ir-$$"; then
            echo "$text: mode $mode must refuse this"
            exit 1
        fi
        "$filecheck" --check-prefix="$prefix-ERROR" --input-file="/tmp/trellis-ir-$$" "$text" || { rm -f "/tmp/trellis-ir-$$"; exit 1; }
        rm -f "/tmp/trellis-ir-$$"
    elif grep -qE "^; $prefix(-[A-Z]+)?:" "$text"; then
        "$opt" -load-pass-plugin="$plugin" -passes="trellis<$mode>,verify" -S "$text" | "$filecheck" --check-prefix="$prefix" "$text" || exit 1
    else
        continue
    fi
    checked=$((checked + 1))
done
[ $checked -gt 0 ] || { echo "$text: no expectations"; exit 1; }
