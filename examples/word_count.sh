#!/bin/sh
# A handler: counts the words of each message, and fails for one that has none.
#
#     gatepost agent run counter -- examples/word_count.sh
#     gatepost send counter "how many words" --wait processed

text=$(cat)
if [ -z "$text" ]; then
    # The last line on standard error is the reason of the failed turn, which is tried again later.
    echo "message $GATEPOST_MESSAGE_ID of $GATEPOST_SENDER has no words" >&2
    exit 1
fi
# The output is JSON, so the reply is a JSON object.
printf '{"words": %d, "attempt": %d}\n' "$(printf '%s' "$text" | wc -w)" "$GATEPOST_ATTEMPT"
