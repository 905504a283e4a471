#!/bin/sh
# Headers of the hash maps that benchmarks/mem_tier.py compares with, into the folder $1: boost from
# the distribution (no root needed: the package is unpacked, not installed), unordered_dense from
# its repository. What is there already, or in /usr/include, is left alone.
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
ankerl=ankerl/unordered_dense.h
version=v4.9.2
if [ ! -e "$folder/$ankerl" ] && [ ! -e "/usr/include/$ankerl" ]; then
  mkdir -p "$folder/ankerl"
  for name in unordered_dense.h stl.h; do
    curl -fsSL -o "$folder/ankerl/$name" \
      "https://raw.githubusercontent.com/martinus/unordered_dense/$version/include/ankerl/$name"
  done
fi
