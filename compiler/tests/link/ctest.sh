#!/bin/bash
# The links as ctest runs them: TRELLIS_COMMAND names the `trellis` that compiles, else the one in PATH.
command=${TRELLIS_COMMAND:-$(command -v trellis)}
if [ -z "$command" ]; then
    echo "SKIPPED link: there is no trellis command; set TRELLIS_COMMAND to it"
    exit 0
fi
export TRELLIS_COMPILER_DIRECTORY=$1
exec "$(dirname "$0")/run.sh" "$command" "$2"
