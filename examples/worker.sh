#!/usr/bin/env bash
# A complete worker in bash, with curl.
#
#     examples/worker.sh
#
# Bash cannot listen on a port: socat accepts the connections and starts this script anew for each request
# ("worker.sh receive"). Needed besides bash 4.4: curl, jq, socat and GNU coreutils.
#
# It serves the same step as worker.py: POST /thumbnail. Environment: PORT (9000), HEARTBEAT_SECONDS (5), and
# COUNTERFOIL_SIGNING_SECRET (whsec_...): if it is set, dispatches must be signed, and reports are signed too.
#
# Each work item has a directory, named by the digest of its receipt:
#     dispatch.json   what the engine sent, the newest attempt     result.json   the result, once the work has ended
#     heartbeat.json  the body of the next heartbeat               report.json   the body of the report
#     running/        exists while a process works on the item     answer.*      what the engine answered last
set -uo pipefail
umask 077 # the directories hold receipts

port=${PORT:-9000}
heartbeat_seconds=${HEARTBEAT_SECONDS:-5}
secret=${COUNTERFOIL_SIGNING_SECRET:-}

max_body_bytes=$((16 * 1024 * 1024))
tolerance_seconds=300 # how old, or how far ahead, the timestamp of a signature may be
time_limit=3600       # seconds after which the work is stopped
tries=10              # deliveries of one report, over about two minutes
first_pause_ms=500
longest_pause_ms=30000
longest_retry_after_ms=3600000
remembered_minutes=120 # how long results are kept, to be reported again

# ---------------------------------------------------------------------------------------------- the work itself

# Does the work of directory $1 and prints its result. It is a process of its own ("worker.sh thumbnail"), and is
# stopped with SIGTERM when the engine no longer needs the result.
thumbnail() {
    local dispatch=$1/dispatch.json part_seconds progress
    if jq -e '.arguments.image | type != "string"' "$dispatch" >/dev/null; then
        echo '{"success": false, "error": "there is no image to make smaller"}' # permanent: a retry would not help
        return
    fi
    if jq -e '.arguments.busy and .metadata.attempt == 1' "$dispatch" >/dev/null; then
        echo '{"success": false, "error": "the renderer is busy", "retriable": true, "retry_after": 1}'
        return
    fi
    part_seconds=$(jq '(.arguments.seconds // 2) / 4' "$dispatch")
    for progress in 0.25 0.5 0.75 1; do
        sleep "$part_seconds" # stands for the long work
        echo "{\"progress\": $progress}" >"$1/heartbeat.new"
        mv "$1/heartbeat.new" "$1/heartbeat.json"
    done
    jq '{success: true, outputs: {thumbnail: "small-\(.arguments.image)"}}' "$dispatch"
}

# ---------------------------------------------------------------------------------------------- one work item

# Works on directory $1, unless a process does so already: the same work may be dispatched more than once.
handle() {
    local directory=$1
    if [[ -d $directory/running ]]; then
        log "$directory" "already running"
    fi
    while mkdir "$directory/running" 2>/dev/null; do
        if [[ ! -e $directory/result.json ]] && ! run_with_heartbeats "$directory"; then
            log "$directory" "cancelled"
            rmdir "$directory/running"
            return
        fi
        report "$directory"
        rmdir "$directory/running"
        is_dispatched_again "$directory" || return
    done
}

# Whether a newer attempt arrived before the answer to the report of the last one.
is_dispatched_again() {
    jq -en --slurpfile dispatch "$1/dispatch.json" --slurpfile report "$1/report.json" \
        '$dispatch[0].metadata.attempt > $report[0].attempt' >/dev/null 2>&1
}

# Runs the work, with heartbeats while it runs, and leaves its result in outcome.json; fails if it was cancelled.
# A result that is final is also kept as result.json.
run_with_heartbeats() {
    local directory=$1 job running status cancelled=''
    log "$directory" "started"
    echo '{}' >"$directory/heartbeat.json"
    # The work holds one end of a pipe open (descriptor 3): reading at the other end waits until the work has ended.
    exec {running}< <(exec timeout "$time_limit" bash "$self" thumbnail "$directory" 3>&1 >"$directory/outcome.json")
    job=$!
    while true; do
        read -r -t "$heartbeat_seconds" -u "$running" _
        (($? > 128)) || break # the work has ended; above 128: the time is over
        if [[ ! $cancelled ]] && ! is_wanted "$directory"; then
            cancelled=yes
            kill "$job"
        fi
    done
    exec {running}<&-
    wait "$job"
    status=$?
    [[ ! $cancelled ]] || return 1
    if ((status != 0)) || [[ $(jq 'has("success")' "$directory/outcome.json" 2>/dev/null) != true ]]; then
        # Unexpected: let the engine try again.
        jq -n --arg error "the work ended with exit status $status" \
            '{success: false, error: $error, retriable: true}' >"$directory/outcome.json"
    fi
    if jq -e '.retriable | not' "$directory/outcome.json" >/dev/null; then
        cp "$directory/outcome.json" "$directory/result.json"
    fi
}

# Sends a heartbeat, which extends the deadline. A lost one does no harm: the next one follows soon.
is_wanted() {
    local directory=$1 status
    touch "$directory"
    if ! status=$(post "$directory" heartbeat_url heartbeat.json); then
        log "$directory" "heartbeat lost"
        return 0
    fi
    if ((status == 200)); then
        [[ $(jq '.cancel_requested' "$directory/answer.json" 2>/dev/null) != true ]]
        return
    fi
    log "$directory" "heartbeat refused: $(code "$directory" "$status")"
    ((status != 400 && status != 404)) # these two: the work has ended, or is unknown
}

# ---------------------------------------------------------------------------------------------- reporting

# Delivers the same result until the engine gives a final answer.
report() {
    local directory=$1 outcome=$1/result.json
    [[ -e $outcome ]] || outcome=$directory/outcome.json
    jq -c --slurpfile dispatch "$directory/dispatch.json" '. + {attempt: $dispatch[0].metadata.attempt}' \
        "$outcome" >"$directory/report.json"
    local delivery status retry_after_ms pause_ms
    for ((delivery = 1; delivery <= tries; delivery++)); do
        retry_after_ms=0
        if ! status=$(post "$directory" webhook_url report.json); then
            log "$directory" "delivery $delivery failed: no answer"
        elif ((status == 200)); then
            log "$directory" "reported: $(jq -r '.verdict' "$directory/answer.json")"
            return
        elif ((status >= 500 || status == 408 || status == 425 || status == 429)); then
            log "$directory" "delivery $delivery failed: $(code "$directory" "$status")"
            retry_after_ms=$(read_retry_after "$directory/answer.headers")
        else
            log "$directory" "report refused: $(code "$directory" "$status")"
            if ((status == 413 || status == 422)) && jq -e '.success' "$directory/report.json" >/dev/null; then
                # The engine cannot take these outputs. A failed flow is better than one that waits for its deadline.
                jq -n --arg code "$(code "$directory" "$status")" \
                    '{success: false, error: "the result was refused: \($code)"}' >"$directory/result.json"
                report "$directory"
            fi
            return
        fi
        if ((delivery < tries)); then
            pause_ms=$(pause_after "$delivery")
            ((retry_after_ms <= pause_ms)) || pause_ms=$retry_after_ms
            sleep "$((pause_ms / 1000)).$(printf '%03d' $((pause_ms % 1000)))"
        fi
    done
    log "$directory" "not reported: the engine dispatches the work again when its deadline has passed"
}

# The pause doubles; between half and all of it is used, so that many workers do not retry at the same moment.
pause_after() {
    local full=$((first_pause_ms << ($1 - 1)))
    ((full <= longest_pause_ms)) || full=$longest_pause_ms
    echo $((full / 2 + RANDOM * (full / 2) / 32767))
}

# Prints the milliseconds that a Retry-After header asks for: a number of seconds or a date.
read_retry_after() {
    local text ms=0
    text=$(tr -d '\r' <"$1" | sed -n 's/^retry-after: *//Ip' | tail -n 1)
    if [[ $text =~ ^[0-9]{1,6}$ ]]; then
        ms=$((10#$text * 1000))
    elif [[ $text =~ GMT$ ]]; then
        ms=$((($(date --date "$text" +%s 2>/dev/null || date +%s) - $(date +%s)) * 1000))
    fi
    echo $((ms < longest_retry_after_ms ? ms : longest_retry_after_ms))
}

# Posts file $3 of directory $1 to the URL in field $2 of the metadata, and prints the status; fails without an answer.
# Each delivery gets its own signature, because a signature is accepted for five minutes only. curl reads the URL from
# standard input: it contains the receipt, and every user of the machine can see the arguments of a program.
post() {
    local directory=$1 field=$2 body=$1/$3 id timestamp
    rm -f "$directory/answer.json" "$directory/answer.headers"
    {
        jq -r --arg field "$field" '"url = \(.metadata[$field] | tojson)"' "$directory/dispatch.json"
        if [[ $secret ]]; then
            id=msg_$(random_hex) timestamp=$(date +%s)
            echo "header = \"webhook-id: $id\""
            echo "header = \"webhook-timestamp: $timestamp\""
            echo "header = \"webhook-signature: $(sign "$id" "$timestamp" <"$body")\""
        fi
    } | curl --silent --config - --request POST --header 'Content-Type: application/json' --data-binary "@$body" \
        --max-time 10 --output "$directory/answer.json" --dump-header "$directory/answer.headers" \
        --write-out '%{http_code}'
}

# Prints the error code of the last answer, or its status if it is not the engine's (a proxy's error page).
code() {
    local code
    code=$(jq -r '.error.code // empty' "$1/answer.json" 2>/dev/null)
    echo "${code:-HTTP $2}"
}

# ---------------------------------------------------------------------------------------------- signatures

# Prints the signature of standard input (Standard Webhooks): HMAC-SHA256 over <id>.<timestamp>.<body>.
# openssl takes the key as an argument, which every user of the machine can see; so the HMAC is made by its definition.
sign() {
    local inner outer
    inner=$({ key_xor 0x36; printf '%s.%s.' "$1" "$2"; cat; } | sha256sum)
    outer=$({ key_xor 0x5c; unhex "${inner%% *}"; } | sha256sum)
    echo "v1,$(unhex "${outer%% *}" | base64 -w 0)"
}

# Prints the bytes of the key, filled up to 64, each XORed with $1.
key_xor() {
    local i escaped=''
    for ((i = 0; i < 128; i += 2)); do
        printf -v escaped '%s\\x%02x' "$escaped" $((16#${key_hex:i:2} ^ $1))
    done
    printf '%b' "$escaped"
}

unhex() {
    local i escaped=''
    for ((i = 0; i < ${#1}; i += 2)); do
        escaped+="\\x${1:i:2}"
    done
    printf '%b' "$escaped"
}

random_hex() {
    od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n'
}

# Sets key_hex: the key as 128 hexadecimal digits, as HMAC-SHA256 wants it.
read_secret() {
    if [[ ! $secret =~ ^whsec_[A-Za-z0-9+/]+=?=?$ ]] ||
        ! key_hex=$(base64 -d <<<"${secret#whsec_}" 2>/dev/null | od -An -v -tx1 | tr -d ' \n'); then
        refuse "COUNTERFOIL_SIGNING_SECRET must be whsec_ followed by base64"
    fi
    ((${#key_hex} <= 128)) || key_hex=$(unhex "$key_hex" | sha256sum | cut -d ' ' -f 1)
    printf -v key_hex '%-128s' "$key_hex"
    key_hex=${key_hex// /0}
}

# Checks the signature of file $4 by the headers webhook-id ($1), webhook-timestamp ($2) and webhook-signature ($3),
# which may hold several signatures, while a secret is replaced.
is_authentic() {
    local age expected given all salt
    [[ $1 && $2 =~ ^[0-9]{1,12}$ ]] || return 1
    age=$(($(date +%s) - 10#$2))
    ((age <= tolerance_seconds && age >= -tolerance_seconds)) || return 1
    salt=$(random_hex)
    expected=$(sign "$1" "$2" <"$4")
    read -ra all <<<"$3"
    for given in "${all[@]}"; do
        # Bash has no comparison in constant time: of salted digests, the time of a comparison tells nothing.
        [[ $(sha256sum <<<"$salt$given") == "$(sha256sum <<<"$salt$expected")" ]] && return 0
    done
    return 1
}

# ---------------------------------------------------------------------------------------------- the server

# Answers one HTTP request (on standard input and output). Work is only handed over to the server here.
receive() {
    local method path name value length='' id='' timestamp='' signatures='' body receipt digest
    read -r -t 10 method path _ || return 0
    while IFS=: read -r -t 10 name value && [[ $name != $'\r' ]]; do
        value=${value%$'\r'}
        value=${value# }
        case ${name,,} in
            content-length) length=$value ;;
            webhook-id) id=$value ;;
            webhook-timestamp) timestamp=$value ;;
            webhook-signature) signatures=$value ;;
        esac
    done
    [[ $path == /thumbnail ]] || { answer "404 Not Found" '{"error": "there is no such step"}'; return; }
    [[ $method == POST ]] || { answer "405 Method Not Allowed" '{"error": "use POST"}'; return; }
    [[ $length =~ ^[0-9]{1,9}$ ]] || { answer "411 Length Required" '{"error": "Content-Length is needed"}'; return; }
    ((10#$length <= max_body_bytes)) || { answer "413 Content Too Large" '{"error": "the body is too large"}'; return; }
    body=$(mktemp "$spool/received.XXXXXX")
    timeout 30 head -c "$length" >"$body"
    if [[ $secret ]] && ! is_authentic "$id" "$timestamp" "$signatures" "$body"; then
        rm "$body"
        answer "401 Unauthorized" '{"error": "the signature is missing or wrong"}'
        return
    fi
    receipt=$(jq -r '.metadata | select(.webhook_url) | .receipt_token // empty' "$body" 2>/dev/null)
    if [[ ! $receipt ]]; then
        rm "$body"
        answer "400 Bad Request" '{"error": "this is not a dispatch of an async step"}'
        return
    fi
    digest=$(sha256sum <<<"$receipt")
    mkdir -p "$spool/${digest%% *}"
    mv "$body" "$spool/${digest%% *}/dispatch.json" &&
        echo "${digest%% *}" >&4 &&
        answer "200 OK" '{"success": true}'
}

answer() {
    printf 'HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
        "$1" "${#2}" "$2"
}

# Logs what happened to the work item of directory $1. The receipt and the URLs that contain it are never logged.
log() {
    jq -r --arg text "$2" '.metadata | "flow \(.flow_id), step \(.step_id), attempt \(.attempt): \($text)"' \
        "$1/dispatch.json" >&2
}

# Starts socat, and a process for each dispatch. A signal stops socat; what is running is finished first.
serve() {
    local listener queue digest stopping=''
    cd "$(dirname "$0")" || exit
    self=./$(basename "$0")
    spool=$(mktemp -d)
    export spool
    trap 'rm -rf "$spool"' EXIT
    # Receiving processes write to descriptor 4; the queue ends when socat and the last of them have ended.
    exec {queue}< <(exec socat "TCP-LISTEN:$port,bind=127.0.0.1,reuseaddr,fork" "EXEC:bash $self receive" 4>&1)
    listener=$!
    trap 'stopping=yes; echo "stopping: running work is finished first" >&2; kill "$listener" 2>/dev/null' TERM INT
    echo "listening on http://127.0.0.1:$port" >&2
    while read -r -u "$queue" digest; do
        handle "$spool/$digest" &
        find "$spool" -mindepth 1 -maxdepth 1 -mmin "+$remembered_minutes" -exec rm -rf {} +
    done
    until wait; do :; done # a further signal interrupts it
    [[ $stopping ]]        # otherwise socat has failed
}

refuse() {
    echo "$1" >&2
    exit 1
}

[[ $heartbeat_seconds =~ ^[0-9]*\.?[0-9]+$ && $heartbeat_seconds =~ [1-9] ]] ||
    refuse "HEARTBEAT_SECONDS must be a positive number"
key_hex=''
[[ ! $secret ]] || read_secret
case ${1:-serve} in
    serve) serve ;;
    receive) receive ;;
    thumbnail) thumbnail "$2" ;;
esac
