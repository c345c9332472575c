#!/bin/sh
# Installs the Debian packages that the build, the tests and the demo's data need, as root or with sudo. Without either,
# prints the one command and goes on: what is missing is then skipped by name. The largest is the browser in which the
# HTML report is tested: 96 MB to fetch, 306 MB installed (chromium itself: 113 and 414 MB).
set -eu
packages="cmake ninja-build ccache libgtest-dev libgmock-dev libbenchmark-dev clang-tidy iproute2 dataset-fashion-mnist
  chromium-headless-shell"
command -v dpkg-query >/dev/null 2>&1 || { echo "no Debian system: install the equivalents of:" $packages; exit 0; }
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then
  as_root=""
elif sudo -n true 2>/dev/null; then
  as_root="sudo -n"
else
  echo "hint: sudo apt-get install -y$missing"
  exit 0
fi
$as_root apt-get update -qq || true
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
