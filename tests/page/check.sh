#!/bin/sh
# The page's scripts (dfx_agent/web/static): linter, types, unit tests. Older Nodes read a file with
# `import` as CommonJS where no package.json says otherwise, and none is shipped with the page.
set -eu
cd "$(dirname "$0")"

is_new='const [a, b] = process.versions.node.split(".").map(Number);
process.exit((a === 20 && b >= 19) || (a === 22 && b >= 7) || a >= 23 ? 0 : 1);'
if ! command -v npm >/dev/null || ! node --eval "$is_new" 2>/dev/null; then
    echo "SKIPPED: the page's scripts were not checked: no Node 20.19, 22.7 or newer with npm here"
    exit 0
fi
if [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
    npm ci --no-audit --no-fund --loglevel=error
fi
for check in lint types test; do
    npm run --silent "$check"
done
