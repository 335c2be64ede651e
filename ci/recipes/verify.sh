#!/bin/sh
# Any other scheduler: run this from the repository. `timeout` is the limit of last resort; it never fires first.
set -eu
cd "$(git rev-parse --show-toplevel)"
exec timeout --kill-after=30s 115m cargo xtask verify --caller ci --outer 115m   # xtask:outer=verify
