#!/bin/sh
# Checks that the shim compiles against the headers of another torch: its wheel, unpacked without its dependencies.
set -eu
version=${1:?usage: check_versions.sh TORCH_VERSION}
python=.venv/bin/python
wheel=build/torch-$version
if [ ! -d "$wheel/torch/include" ]; then
  mkdir -p "$wheel"
  $python -m pip download -q --no-deps -d "$wheel" "torch==$version"
  $python -m zipfile -e "$wheel"/torch-*.whl "$wheel"
  rm -f "$wheel"/torch-*.whl
fi
includes=$($python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
for unit in src/torch/*.cpp; do
  echo "#include \"torch/$(basename "$unit")\""
done >"$wheel/shim.cpp"
g++ -std=c++20 -fsyntax-only -DKAITIAN_VERSION='"check"' -Iinclude -Isrc -I"$includes" \
  -isystem "$wheel/torch/include" -isystem "$wheel/torch/include/torch/csrc/api/include" "$wheel/shim.cpp"
echo "the shim compiles against torch $version"
