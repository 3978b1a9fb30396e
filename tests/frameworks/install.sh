#!/bin/sh
# install.sh PIP, from the repository's root: what the tests against real frameworks need.
#
# One file per framework, the folder is the registry: requirements-NAME.txt is installed with its
# dependencies, requirements-NAME.nodeps.txt without (packages that ask for CUDA, or for versions
# that only a GPU machine needs). A framework that cannot be installed here is said and left out:
# its tests skip themselves. Versions come from the two constraints files and nowhere else.
set -u
pip=$1

install() {
    "$pip" install --quiet --disable-pip-version-check --no-compile \
        --constraint constraints.txt --constraint constraints-frameworks.txt "$@"
}

install --editable '.[demo]' httpx pytest pytest-rerunfailures pytest-timeout || exit 1
for file in tests/frameworks/requirements-*.txt; do
    case $file in
    *.nodeps.txt) install --no-deps --requirement "$file" ;;
    *) install --requirement "$file" ;;
    esac || echo "install.sh: SKIPPED $file: it cannot be installed here, the reason is above"
done
