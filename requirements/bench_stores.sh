#!/bin/sh
# RocksDB and LMDB, which benchmarks/ssd_tier.py compares with, into the folders include and lib of
# $1, from the packages librocksdb-dev and liblmdb-dev of Debian or Ubuntu. No root is needed: the
# packages are unpacked, not installed. If they are installed, nothing is done.
set -e
mkdir -p "$1"
folder=$(cd "$1" && pwd)
if [ -e /usr/include/rocksdb/db.h ] && [ -e /usr/include/lmdb.h ]; then exit 0; fi
if [ -e "$folder/include/rocksdb/db.h" ] && [ -e "$folder/include/lmdb.h" ]; then exit 0; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The names of packages with libraries contain versions, such as librocksdb7.8.
depends() { apt-cache depends --important "$@" | sed -n 's/^ *Depends: \(lib[a-z0-9.+-]*\)$/\1/p'; }
libraries=$(depends librocksdb-dev liblmdb-dev | grep -E '^lib(rocksdb|lmdb)')
more=$(depends $libraries | grep -vE '^lib(c6|gcc-s1|stdc\+\+6)$' | sort -u)
cd "$scratch"
apt-get download -q librocksdb-dev liblmdb-dev $libraries $more
for package in ./*.deb; do dpkg -x "$package" .; done
mkdir -p "$folder/include" "$folder/lib"
cp -r usr/include/rocksdb usr/include/lmdb.h "$folder/include/"
find . -name '*.so*' -exec cp -a {} "$folder/lib/" \;
