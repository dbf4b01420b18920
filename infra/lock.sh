#!/usr/bin/env bash
# Write infra/locked/*.txt, from which the image installs its packages: those for a device, each with its version and the sha256 of its files.
# Run it after each change of pyproject.toml or constraints.txt. It needs uv (pip install uv) and the package index.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {        # FILE REQUIREMENTS... [OPTIONS...]
    local file=infra/locked/$1
    shift
    echo "# Written by infra/lock.sh." > "$file"
    uv pip compile "$@" --constraint infra/constraints.txt --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --no-header --no-annotate --quiet >> "$file"
}

mkdir -p infra/locked
lock torch.txt - <<< torch
mapfile -t accelerated < <(grep -oE '^(torch|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)' infra/locked/torch.txt)
for device in cpu gpu; do
    extras=()
    for extra in "$device" cluster augment lora watch; do extras+=(--extra "$extra"); done
    lock "$device.txt" pyproject.toml "${extras[@]}" "${accelerated[@]/#/--no-emit-package=}"
done
