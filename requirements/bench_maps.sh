#!/bin/sh
# Headers of the hash maps that benchmarks/mem_tier.py compares with, into the folder $1: boost from
# the distribution (no root needed: the package is unpacked, not installed). The headers of
# unordered_dense must be there; if not, this names them. Nothing is done for what is there already,
# or in /usr/include.
set -e
mkdir -p "$1"
folder=$(cd "$1" && pwd)
boost=boost/unordered/unordered_flat_map.hpp
if [ ! -e "$folder/$boost" ] && [ ! -e "/usr/include/$boost" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # The first release that has the map is 1.81; a distribution may have several.
  package=$(apt-cache search --names-only '^libboost1\.[0-9]+-dev$' | cut -d' ' -f1 | sort -V | tail -1)
  (cd "$scratch" && apt-get download -q "$package" && dpkg -x ./*.deb .)
  cp -r "$scratch/usr/include/boost" "$folder/"
fi
for name in unordered_dense.h stl.h; do
  if [ ! -e "$folder/ankerl/$name" ] && [ ! -e "/usr/include/ankerl/$name" ]; then
    echo "ankerl/$name: found neither in $folder nor in /usr/include: copy it from include/ankerl of" \
      "release 4.9.2 of martinus/unordered_dense, which no package has" >&2
    exit 1
  fi
done
