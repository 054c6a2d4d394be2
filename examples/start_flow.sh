#!/bin/sh
# Registers the step that worker.py and plain_worker.py serve, starts a flow with it and waits for its result.
# Everything is plain HTTP; the engine and one of the workers must be running.
set -eu

engine=${COUNTERFOIL_URL:-http://127.0.0.1:8080}
worker=${WORKER_URL:-http://127.0.0.1:9000}
init=${1:-'{"image": "cat.png"}'}
flow=example-$(date +%s)-$$

call() {
    curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' \
        ${COUNTERFOIL_KEY:+--header "Authorization: Bearer $COUNTERFOIL_KEY"} "$@"
    echo
}

echo "1. register the step"
call --request PUT "$engine/api/v1/steps/thumbnail" --data "{
    \"kind\": \"async\",
    \"endpoint\": \"$worker/thumbnail\",
    \"work\": {\"max_retries\": 3, \"init_backoff_ms\": 500, \"deadline_ms\": 60000}
}"

echo "2. start a flow with an id, so that starting it twice by accident is refused"
call --request POST "$engine/api/v1/flows" --data "{
    \"flow_id\": \"$flow\",
    \"goals\": [\"thumbnail\"],
    \"init\": $init
}"

echo "3. wait for its result"
call "$engine/api/v1/flows/$flow/result?wait=30"
