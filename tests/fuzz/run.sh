#!/bin/sh
# run.sh TARGET SEEDS [SECONDS]: a short run of a fuzz target from fresh seeds. Non-zero when it finds something.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/corpus"
"$2" "$dir/corpus" >/dev/null
target=$(realpath "$1")
cd "$dir"
"$target" -max_total_time="${3:-10}" -max_len=4096 -print_final_stats=1 corpus
