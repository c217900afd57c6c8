#!/usr/bin/env bash
# Builds the site into build/site/html (make site). The generator's packages are fetched once for each lock file; after
# that nothing is asked of the network.
set -euo pipefail
cd "$(dirname "$0")/../.."
site=build/site
mkdir -p $site
if ! cmp -s docs/site/package-lock.json $site/node_modules/made-from; then
  cp docs/site/{package.json,package-lock.json,.npmrc} $site/
  (cd $site && npm ci --no-progress --loglevel=error)
  cp docs/site/package-lock.json $site/node_modules/made-from
fi
rm -rf $site/.vitepress $site/html
cp -r docs/site/.vitepress $site/
(cd $site && node_modules/.bin/vitepress build)
go run ./docs/site/check $site/html
echo "look at it: python3 -m http.server -d $site/html"
