#!/bin/bash
# on NODE COMMAND...    in the guest, run COMMAND on NODE through a shell, as ssh does
while [[ $1 == -* ]]; do shift; done    # launchers give options for ssh
pid=$(< "/run/nodes/$1") || exit 255
shift
exec nsenter -t "$pid" -n -u -i -m --wdns="$PWD" sh -c "$*"
