#!/bin/sh
# Installs Trellis from the unpacked archive, or removes what it installed.
#
#   ./install.sh [--prefix DIR]      by default /usr/local
#   ./install.sh --uninstall [--prefix DIR]
set -eu
umask 022

usage() {
    sed -n 's/^#   //p' "$0"
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

prefix=/usr/local
uninstall=
while [ $# -gt 0 ]; do
    case "$1" in
    --prefix)
        [ $# -ge 2 ] || fail "--prefix needs a folder; see --help"
        prefix=$2
        shift
        ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --uninstall) uninstall=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail "\`$1\` is not known; see --help" ;;
    esac
    shift
done
case "$prefix" in
/*) ;;
*) fail "the prefix \`$prefix\` is not absolute; give one that begins with /" ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
# Every file of the archive, relative to the prefix.
list=$here/files
[ -r "$list" ] || fail "$list is not there; unpack the archive again"

if [ -n "$uninstall" ]; then
    while read -r file; do
        rm -f "$prefix/$file"
    done <"$list"
    # Folders that others use are not empty and stay.
    for folder in include/trellis include/libivy lib/cmake/Trellis lib/trellis share/trellis share/doc/trellis; do
        [ ! -d "$prefix/$folder" ] || find "$prefix/$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    echo "removed Trellis from $prefix"
    exit 0
fi

mkdir -p "$prefix" 2>/dev/null || fail "cannot make $prefix; run this as root, or give a --prefix of your own"
[ -w "$prefix" ] || fail "cannot write to $prefix; run this as root, or give a --prefix of your own"
while read -r file; do
    mkdir -p "$(dirname "$prefix/$file")"
    # A running program keeps its file.
    rm -f "$prefix/$file.new"
    cp -P "$here/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done <"$list"
if [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null 2>&1; then
    ldconfig
fi
echo "installed Trellis under $prefix; try \`$prefix/bin/trellis doctor\`"
