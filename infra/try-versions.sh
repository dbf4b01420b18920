#!/usr/bin/env bash
# Try each Python of this machine (3.11 or newer, on PATH or of pyenv) with the newest packages that pyproject.toml allows: in a fresh environment without constraints.txt, run the fast
# tests of the folders below, whose code depends most on the versions of Python and of packages. Print a table, and end with 1 if anything fails.
#
#     infra/try-versions.sh                           every Python, in turn: about ten minutes each on one core, 8 GB of disk
#     infra/try-versions.sh 3.12 3.13 torch==2.13.0   these Pythons, with further requirements for pip
set -uo pipefail
cd "$(dirname "$0")/.."

folders=(       # about seven minutes of one core, together
    tests/models/folder             # torch, transformers, sentence-transformers
    tests/flows/on_ray              # Ray
    tests/store/files               # fsspec and the clients of object stores
    tests/text/{sources,formats}    # pyarrow, and the readers of lakes
    tests/index/search              # faiss
    tests/transforms                # numpy, scipy
    tests/jobs tests/serve          # typer and pydantic; fastapi
    tests/flows/export              # the clients of databases
)

pythons() {     # one line for each minor version, of its newest release: MINOR VERSION PATH
    local folder python
    for folder in ${PATH//:/ } "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin; do
        for python in "$folder"/python3.[0-9]*; do
            [[ $python =~ python3\.[0-9]+$ && -x $python ]] || continue
            "$python" -c 'import ensurepip, sys, venv
version = sys.version_info
if version >= (3, 11): print(f"{version[0]}.{version[1]}", "{}.{}.{}".format(*version), sys.executable)' 2> /dev/null
        done
    done | sort --version-sort | awk '{ newest[$1] = $0 } END { for (minor in newest) print newest[minor] }' | sort --version-sort
}

wanted=() requirements=()
for word in "$@"; do
    if [[ $word =~ ^3\.[0-9]+$ ]]; then wanted+=("$word"); else requirements+=("$word"); fi
done
mapfile -t found < <(pythons)
for minor in "${wanted[@]}"; do
    printf '%s\n' "${found[@]}" | grep -q "^$minor " || { echo "Python $minor: not found; this machine has: ${found[*]}" >&2; exit 2; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"/3.*' EXIT
export OMP_NUM_THREADS=1
failed=0 header="| tests |" rule="|---|"
declare -A cells
for line in "${found[@]}"; do
    read -r minor version python <<< "$line"
    [[ ${#wanted[@]} -eq 0 || " ${wanted[*]} " == *" $minor "* ]] || continue
    environment=$scratch/$minor
    header+=" Python $version |" rule+="---|"
    echo "Python $version: installing"
    if ! { "$python" -m venv "$environment" && "$environment/bin/pip" install --quiet -e ".[test]" "${requirements[@]}"; } > "$scratch/$minor.log" 2>&1; then
        echo "Python $version: the packages cannot be installed, see $scratch/$minor.log" >&2
        failed=1
        for folder in "${folders[@]}"; do cells[$folder]+=" not installed |"; done
        continue
    fi
    for folder in "${folders[@]}"; do
        log=$scratch/$minor-${folder//\//-}.log
        "$environment/bin/python" -m pytest -n 0 -p no:cacheprovider --basetemp "$scratch/$minor/tests" "$folder" > "$log" 2>&1
        status=$?
        cell=$(tail -n 1 "$log" | grep -oE '[0-9]+ (passed|failed|errors?|skipped)|in [0-9.]+s' | paste -s -d, | sed 's/,/, /g')
        if [[ $status -ne 0 ]]; then
            failed=1 cell="**${cell:-stopped}**, exit code $status"
            echo "Python $version, $folder: failed, see $log" >&2
        fi
        cells[$folder]+=" $cell |"
    done
    "$environment/bin/pip" freeze --exclude-editable > "$scratch/$minor.txt"
    echo "Python $version: packages of other versions than constraints.txt: $(grep -ixvFf infra/constraints.txt "$scratch/$minor.txt" | grep -ivE '^(nvidia|cuda)-' | paste -s -d ' ')"
    rm -rf "$environment"
done
[[ $failed -ne 0 ]] || rm -rf "$scratch"

echo "$header"
echo "$rule"
for folder in "${folders[@]}"; do echo "| \`$folder\` |${cells[$folder]-}"; done
exit $failed
