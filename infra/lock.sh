#!/usr/bin/env bash
# Write infra/locked/*.txt, from which the image installs its packages, each with its version and the sha256 of its files: those for a device, and further ones by the names that the
# Dockerfile's argument EXTRAS takes.
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
always=(--extra cluster --extra augment --extra lora --extra watch)
for device in cpu gpu; do
    lock "$device.txt" pyproject.toml --extra "$device" "${always[@]}" "${accelerated[@]/#/--no-emit-package=}"
done

mapfile -t installed < <(grep -hoE '^[a-z0-9-]+' infra/locked/{torch,cpu}.txt | sort --unique)
further() {     # NAME EXTRAS...
    local name=$1 extra chosen=()
    shift
    for extra in "$@"; do chosen+=(--extra "$extra"); done
    lock "$name.txt" pyproject.toml --extra cpu "${always[@]}" "${chosen[@]}" "${installed[@]/#/--no-emit-package=}"
}
further serve serve
further exports pgvector qdrant lancedb milvus opensearch elasticsearch
further lakes delta iceberg gcs azure
