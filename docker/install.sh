#!/bin/sh
# Installs gradwire into /opt/gradwire, as the build stages of the Dockerfile do, and leaves out what no server reads.
#   install.sh EXTRA CONSTRAINTS BACKEND    BACKEND's code is compiled, and kept in /var/cache/gradwire
set -eu
extra=$1 constraints=$2 backend=$3

# pip stays outside: nothing is installed in a container that runs.
/opt/pip/bin/pip --python /opt/gradwire/bin/python install --no-cache-dir --no-compile \
    --constraint "$constraints" --build-constraint "$constraints" ".[$extra]"

# Tests, a second NVRTC beside the one that is loaded, and what is for those who compile against a package or
# type-check it.
find /opt/gradwire -type d \( -name tests -o -path '*/numpy/f2py' -o -path '*/numpy/_core/include' \) -prune \
    -exec rm -r {} +
find /opt/gradwire -type f \( -name '*.pyi' -o -name '*.pxd' -o -name '*.a' -o -name 'libnvrtc*.alt.so*' \) -delete
# Compiled code is good for sources of one age, of which an image keeps whole seconds.
find /opt/gradwire -name '*.py' -exec touch --date='2020-01-01 00:00:00 UTC' {} +

# Of the large packages, bytecode of those modules that are imported: running leaves it behind.
packages=$(/opt/gradwire/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
/opt/gradwire/bin/python -m compileall -q -x '/(cupy|cupyx|cupy_backends|llvmlite|numba|numpy)/' "$packages"
case $extra in cuda*) /opt/gradwire/bin/python -c 'import cupy' ;; esac
GRADWIRE_COMPILE_CACHE=/var/cache/gradwire /opt/gradwire/bin/gradwire-server --compile-only --backend "$backend"

mkdir -p /usr/share/doc/gradwire /var/cache/gradwire
/opt/gradwire/bin/python docker/sbom.py >/usr/share/doc/gradwire/sbom.cdx.json
