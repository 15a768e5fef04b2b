#!/bin/sh
# Takes and settles mail step by step, where `gatepost agent run` is not enough: this worker stops
# when its mailbox is empty, as a cron job does.
#
#     examples/worker.sh counter

agent=$1
while :; do
    taken=$(gatepost --json inbox "$agent" --take --limit 1 --wait 1) || exit 1
    handle=$(printf '%s' "$taken" | jq -r '.messages[0].receipt // empty')
    [ -n "$handle" ] || break
    # The payload is data: it goes through a pipe, and never into a command line.
    if text=$(printf '%s' "$taken" | jq -er '.messages[0].payload | strings'); then
        gatepost ack "$agent" "$handle" --reply "$(printf '%s' "$text" | wc -w)"
    else
        gatepost nack "$agent" "$handle" --reason "the payload is no text" --no-retry
    fi
done
