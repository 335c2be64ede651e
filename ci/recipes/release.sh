#!/bin/sh
# A signed release without a CI service: release.sh TAG, with XTASK_SIGNING_KEY set. Then anybody may ask the gate:
#   cargo xtask check-receipt TAG --baseline PREVIOUS_TAG
set -eu
cd "$(git rev-parse --show-toplevel)"
exec timeout --kill-after=30s 115m cargo xtask release "$1" --outer 115m         # xtask:outer=release
