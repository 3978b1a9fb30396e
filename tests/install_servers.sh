#!/bin/sh
# Installs what the integration tests drive for real: Prometheus, Alertmanager and Chromium.
# Never fails: without them `make test` runs on and those tests are skipped, each with its reason.
set -u

missing=
need() { # need PACKAGE PROGRAM...: remembers PACKAGE when none of the programs is there
    package=$1
    shift
    for program in "$@"; do
        command -v "$program" >/dev/null && return
    done
    missing="$missing $package"
}
need prometheus prometheus
need prometheus-alertmanager prometheus-alertmanager alertmanager
need chromium chromium chromium-browser google-chrome
[ -n "$missing" ] || exit 0

give_up() {
    echo "make test: $1; tests that need them are skipped. To run them: apt-get install$missing" >&2
    exit 0
}

command -v apt-get >/dev/null || give_up "no apt-get here, and these are missing:$missing"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    give_up "no right to install$missing"
fi

# Debian starts a server as it installs it; this file forbids that while we install.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null && $as_root chmod 755 $policy
    trap '$as_root rm -f $policy' EXIT
fi

echo "make test: installing Debian packages:$missing" >&2
log=$(mktemp)
apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq"
if ! { $apt update && $apt install --yes --no-install-recommends $missing; } </dev/null >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    rm -f "$log"
    give_up "apt-get failed"
fi
rm -f "$log"
if [ -d /run/systemd/system ]; then # nor shall they start at the next boot
    for unit in $missing; do
        [ "$unit" = chromium ] || $as_root systemctl disable "$unit" >/dev/null 2>&1
    done
fi
