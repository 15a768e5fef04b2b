#!/bin/sh
# Asks an agent, and prints its reply or the reason why there is none.
#
#     examples/ask.sh counter "how many words"
#
# With `--idempotency-key`, a script that was interrupted and runs again sends its message once.

agent=$1 question=$2
key=ask-$(printf '%s %s' "$agent" "$question" | cksum | cut -d' ' -f1)
answer=$(gatepost --json send "$agent" "$question" --idempotency-key "$key" \
    --wait processed --timeout 30) || exit 1
printf '%s\n' "$answer" | jq -c .reply
