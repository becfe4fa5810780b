#!/bin/sh
# usage: install.sh DIRECTORY
#
# Install the wheel of DIRECTORY/wheels and what it needs into DIRECTORY/venv, from nowhere else. The
# dependencies stay over a repeated run; the wheel under test is installed anew each time.
set -eu
cd "$1"
# A virtual environment without pip takes 1.5 s under emulation, one with it 25 s: pip runs from its wheel.
install() {
  PYTHONPATH=$(echo "$PWD"/wheels/pip-*.whl) python3 -m pip --python venv/bin/python install --quiet \
    --disable-pip-version-check --root-user-action=ignore --no-index --no-compile --find-links wheels "$@"
}
if ! cmp --silent wheels/digest venv/digest; then
  python3 -m venv --clear --without-pip venv
  install --require-hashes --requirement wheels/requirements.txt
  cp wheels/digest venv/digest
fi
install --no-deps --force-reinstall wheels/node_reactor-*.whl
# The benchmarks are in no wheel: they are imported from beside it.
echo "$PWD/checkout-only" >"$(echo venv/lib/python3*/site-packages)/bench.pth"
