#!/bin/bash
# Ends, with what to do, where a disk has too little room for the tests: they would fail in words that do not say so.
#   tests/room.sh FOLDER GB VARIABLE     what the folder holds already counts as there; VARIABLE names another folder
set -euo pipefail

folder=$1 need=$(($2 * 1000)) variable=$3
mkdir -p "$folder"
free=$(($(df --output=avail --block-size=1M "$folder" | tail -1)))
there=$(du --summarize --block-size=1M "$folder" 2>/dev/null | cut -f1 || true)
lacking=$((need - ${there:-0}))
if [ "$free" -lt "$lacking" ]; then
    echo "error: the tests need $lacking MB free in $folder, there are $free: free some, or set $variable to a folder that has them" >&2
    exit 1
fi
