#!/bin/sh
# Install the image's Python packages; runs in the image build.
#   install.sh WHEELS TORCH_INDEX           the dependencies of pyproject.toml, with $EXTRAS, into /opt/peer, without files that peers
#                                           never read
#   install.sh WHEELS TORCH_INDEX PREFIX    only this project, into PREFIX
set -eu
install="/opt/tools/bin/python -m pip --python /opt/peer/bin/python install"

began=$(date +%s)
tell() { echo "install.sh, $(($(date +%s) - began)) s: $*"; }
every() { # run a command, with a line every 5 s: pip prints nothing while it downloads, unpacks and compiles
    what=$1; shift
    tell "$what"
    (while sleep 5; do tell "$what continues"; done) & ticker=$!
    trap 'kill $ticker 2>/dev/null || true' EXIT
    "$@"
    kill $ticker; wait $ticker 2>/dev/null || true
    trap - EXIT
}

if ls "$1"/*.whl >/dev/null 2>&1; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="$PWD/$1"
fi
if [ $# -eq 3 ]; then
    every "installing this project" $install --no-deps --prefix "$3" .
    exit
fi

/opt/peer/bin/python - >requirements.txt <<'END'
import os, re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
def packages(extras):
    for requirement in (each for name in filter(None, extras.split(",")) for each in project["optional-dependencies"][name]):
        own = re.fullmatch(r"coordinator-free\[(.+)\]", requirement)
        yield from packages(own[1]) if own else [requirement]
print(*project["dependencies"], *packages(os.environ["EXTRAS"]), sep="\n")
END
if [ -z "${PIP_NO_INDEX:-}" ]; then # first and separately, so that no other index supplies another build of torch
    every "installing PyTorch from $2" $install --index-url "$2" -c constraints.txt $(grep -oE '^torch(vision)?\b' requirements.txt)
fi
every "installing the packages of requirements.txt" $install -c constraints.txt -r requirements.txt

cd /opt/peer/lib/python3*/site-packages
rm -rf torch/include torch/share torch/test torch/lib/*.a # for building and testing extensions
find torch/bin -type f ! -name torch_shm_manager -exec rm -f {} +
find . -regex '\./\(scipy\|sklearn\|sympy\|networkx\|matplotlib\)/.*' -type d -name tests -prune -exec rm -rf {} +
