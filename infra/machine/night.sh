#!/bin/sh
# For cron: run a night, and run it again after 5 and 30 minutes as long as it ends with 75. Prints nothing if it succeeds. If it fails, prints
# the end of the log, which cron mails, and ends with the night's exit code.
#
#   night.sh CONFIG FOLDER      FOLDER gets the lock (night.lock) and the log (night.log)
set -u
config=$1 folder=$2
for pause in ${MANTA_PAUSES:-0 300 1800}; do
    sleep "$pause"
    flock --nonblock --conflict-exit-code 75 "$folder/night.lock" \
        "${MANTA:-/opt/manta/bin/manta}" nightly --config "$config" >> "$folder/night.log" 2>&1
    code=$?
    [ "$code" -eq 75 ] || break
done
[ "$code" -eq 0 ] && exit
echo "manta nightly --config $config ended with exit code $code. What to do: infra/README.md, By exit code. The end of $folder/night.log:"
tail -n 20 "$folder/night.log"
exit "$code"
